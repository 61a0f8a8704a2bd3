//! Why frames did not merge, why packets ended, and how often (section 12).
//!
//! Linux keeps one flush flag and loses the reason; here every decision names its rule.

use crate::wire::Malformed;

/// The merge rule that a frame broke against the held packet of its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conflict {
    /// The buffer no longer holds the headers that it was accepted with.
    Headers,
    /// META-1: metadata of the uplink.
    Metadata,
    /// ETH-1: a MAC address.
    Ethernet,
    /// VLAN-1: priority or DEI of a tag.
    VlanPriority,
    /// IP4-7, IP6-6: TTL or hop limit.
    Ttl,
    /// IP4-7, IP6-6: type of service or traffic class, ECN included.
    Tos,
    /// IP4-7: "don't fragment".
    Df,
    /// IP4-8: identification.
    Id,
    /// IP6-3: extension headers.
    Ip6Extensions,
    /// IP6-5: flow label.
    FlowLabel,
    /// TCP-2: congestion window reduced.
    Cwr,
    /// TCP-3, TCP-5: flags, header length or window.
    FlagWord,
    /// TCP-4: acknowledgement number.
    Acknowledgement,
    /// TCP-6: options.
    Options,
    /// TCP-7: urgent pointer.
    UrgentPointer,
    /// TCP-8: not the next byte of the stream.
    Sequence,
    /// TCP-9, UDP-4: more payload than the first segment.
    LargerPayload,
    /// TCP-11: no payload.
    NoPayload,
    /// LIM-1: the packet would be too long.
    Size,
    /// LIM-3: the packet has as many segments as it may.
    Segments,
}

impl Conflict {
    /// All of them, in the order of their counters.
    pub const ALL: [Self; 20] = [
        Self::Headers,
        Self::Metadata,
        Self::Ethernet,
        Self::VlanPriority,
        Self::Ttl,
        Self::Tos,
        Self::Df,
        Self::Id,
        Self::Ip6Extensions,
        Self::FlowLabel,
        Self::Cwr,
        Self::FlagWord,
        Self::Acknowledgement,
        Self::Options,
        Self::UrgentPointer,
        Self::Sequence,
        Self::LargerPayload,
        Self::NoPayload,
        Self::Size,
        Self::Segments,
    ];

    /// A stable name for metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Headers => "headers",
            Self::Metadata => "metadata",
            Self::Ethernet => "ethernet",
            Self::VlanPriority => "vlan_priority",
            Self::Ttl => "ttl",
            Self::Tos => "tos",
            Self::Df => "df",
            Self::Id => "id",
            Self::Ip6Extensions => "ip6_extensions",
            Self::FlowLabel => "flow_label",
            Self::Cwr => "cwr",
            Self::FlagWord => "flag_word",
            Self::Acknowledgement => "acknowledgement",
            Self::Options => "options",
            Self::UrgentPointer => "urgent_pointer",
            Self::Sequence => "sequence",
            Self::LargerPayload => "larger_payload",
            Self::NoPayload => "no_payload",
            Self::Size => "size",
            Self::Segments => "segments",
        }
    }
}

/// Why a frame left the engine without becoming a candidate, or a candidate was turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bail {
    /// The layout parser refused it.
    Malformed(Malformed),
    /// TCP-0, UDP-2: the transport checksum is wrong.
    Checksum,
    /// UDP-2: the sender computed no checksum.
    UdpNoChecksum,
    /// UDP-6: a port of a tunnel.
    UdpPort,
    /// FEAT-1, FEAT-2, UDP-8: the guest does not take merged packets of this kind.
    NotNegotiated,
}

impl Bail {
    /// All but those of the layout parser, in the order of their counters.
    pub const OWN: [Self; 4] = [
        Self::Checksum,
        Self::UdpNoChecksum,
        Self::UdpPort,
        Self::NotNegotiated,
    ];

    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        Malformed::ALL
            .into_iter()
            .map(Self::Malformed)
            .chain(Self::OWN)
    }

    /// A stable name for metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Malformed(malformed) => malformed.name(),
            Self::Checksum => "checksum",
            Self::UdpNoChecksum => "udp_no_checksum",
            Self::UdpPort => "udp_port",
            Self::NotNegotiated => "not_negotiated",
        }
    }

    const fn index(self) -> usize {
        match self {
            Self::Malformed(malformed) => malformed as usize,
            Self::Checksum => Malformed::ALL.len(),
            Self::UdpNoChecksum => Malformed::ALL.len() + 1,
            Self::UdpPort => Malformed::ALL.len() + 2,
            Self::NotNegotiated => Malformed::ALL.len() + 3,
        }
    }
}

/// Why a held packet was completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushReason {
    /// The last segment closed it (TCP-10, UDP-4, UDP-5).
    Close,
    /// A frame of its flow broke a merge rule (ORD-1).
    Conflict(Conflict),
    /// A frame of its flow that is no candidate had to follow it (ORD-2).
    Order,
    /// Its bucket was full (ENG-3).
    Eviction,
    /// It was as old as the flush timeout allows.
    Deadline,
    /// The poll ended (NAPI-4).
    PollEnd,
    /// A poll with full budget found it old (NAPI-3).
    FullBudget,
    /// The frame pool ran out (ENG-7).
    Pool,
    /// The queue was stopped or its features changed (ENG-8, FEAT-6).
    Teardown,
}

impl FlushReason {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        [
            Self::Close,
            Self::Order,
            Self::Eviction,
            Self::Deadline,
            Self::PollEnd,
            Self::FullBudget,
            Self::Pool,
            Self::Teardown,
        ]
        .into_iter()
        .chain(Conflict::ALL.into_iter().map(Self::Conflict))
    }

    /// A stable name for metrics; that of the broken rule for a conflict.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Close => "close",
            Self::Conflict(conflict) => conflict.name(),
            Self::Order => "order",
            Self::Eviction => "eviction",
            Self::Deadline => "deadline",
            Self::PollEnd => "poll_end",
            Self::FullBudget => "full_budget",
            Self::Pool => "pool",
            Self::Teardown => "teardown",
        }
    }

    const fn index(self) -> usize {
        match self {
            Self::Close => 0,
            Self::Order => 1,
            Self::Eviction => 2,
            Self::Deadline => 3,
            Self::PollEnd => 4,
            Self::FullBudget => 5,
            Self::Pool => 6,
            Self::Teardown => 7,
            Self::Conflict(conflict) => 8 + conflict as usize,
        }
    }
}

/// Why a frame was thrown away: only what the source itself must not send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// Shorter than an Ethernet header.
    Runt,
    /// The host's header places a partial checksum outside the frame.
    ChecksumPlace,
    /// The host's segmentation header does not fit the frame.
    GsoHeader,
}

impl DropReason {
    /// All of them, in the order of their counters.
    pub const ALL: [Self; 3] = [Self::Runt, Self::ChecksumPlace, Self::GsoHeader];

    /// A stable name for metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Runt => "runt",
            Self::ChecksumPlace => "checksum_place",
            Self::GsoHeader => "gso_header",
        }
    }
}

/// Counters of one engine. All only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroStats {
    /// Frames given to the engine.
    pub frames: u64,
    /// Frames that joined a held packet.
    pub merged: u64,
    /// Bytes of all frames, without virtio-net headers.
    pub bytes: u64,
    /// Frames that became a held packet.
    pub held: u64,
    /// Frames that went to the receive list without being held.
    pub normal: u64,
    /// Of the normal ones, those that concern no flow.
    pub bypassed: u64,
    /// Frames that arrived merged by the host.
    pub host_gso: u64,
    /// Completed packets of two or more segments.
    pub super_frames: u64,
    /// Segments in them.
    pub super_frame_segs: u64,
    bailed: [u64; Malformed::ALL.len() + Bail::OWN.len()],
    completed: [u64; 8 + Conflict::ALL.len()],
    dropped: [u64; DropReason::ALL.len()],
}

impl GroStats {
    /// Frames that bailed or bypassed for this reason.
    #[must_use]
    pub fn bailed(&self, reason: Bail) -> u64 {
        self.bailed.get(reason.index()).copied().unwrap_or_default()
    }

    /// Packets that were completed for this reason.
    #[must_use]
    pub fn completed(&self, reason: FlushReason) -> u64 {
        self.completed
            .get(reason.index())
            .copied()
            .unwrap_or_default()
    }

    /// Frames that were thrown away for this reason.
    #[must_use]
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.dropped
            .get(reason as usize)
            .copied()
            .unwrap_or_default()
    }

    #[inline]
    pub(super) fn count_bail(&mut self, reason: Bail) {
        if let Some(counter) = self.bailed.get_mut(reason.index()) {
            *counter += 1;
        }
    }

    #[inline]
    pub(super) fn count_completed(&mut self, reason: FlushReason, segs: u32) {
        if let Some(counter) = self.completed.get_mut(reason.index()) {
            *counter += 1;
        }
        if segs > 1 {
            self.super_frames += 1;
            self.super_frame_segs += u64::from(segs);
        }
    }

    pub(super) fn count_dropped(&mut self, reason: DropReason) {
        if let Some(counter) = self.dropped.get_mut(reason as usize) {
            *counter += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_reason_has_a_name_of_its_own() {
        let names_of = |names: Vec<&'static str>, count: usize| {
            let distinct: BTreeSet<_> = names.iter().filter(|name| !name.is_empty()).collect();
            assert_eq!((names.len(), distinct.len()), (count, count), "{names:?}");
        };
        let conflicts = Conflict::ALL.len();
        names_of(Conflict::ALL.map(Conflict::name).into(), conflicts);
        names_of(
            Bail::all().map(Bail::name).collect(),
            Malformed::ALL.len() + 4,
        );
        names_of(
            FlushReason::all().map(FlushReason::name).collect(),
            conflicts + 8,
        );
        names_of(
            DropReason::ALL.map(DropReason::name).into(),
            DropReason::ALL.len(),
        );
    }

    #[test]
    fn nothing_is_counted_at_first() {
        let stats = GroStats::default();
        assert!(Bail::all().all(|reason| stats.bailed(reason) == 0));
        assert!(FlushReason::all().all(|reason| stats.completed(reason) == 0));
        assert!(
            DropReason::ALL
                .iter()
                .all(|reason| stats.dropped(*reason) == 0)
        );
    }

    #[test]
    fn every_reason_has_a_counter_of_its_own() {
        let mut stats = GroStats::default();
        Bail::all().for_each(|reason| stats.count_bail(reason));
        FlushReason::all().for_each(|reason| stats.count_completed(reason, 1));
        DropReason::ALL
            .into_iter()
            .for_each(|reason| stats.count_dropped(reason));
        assert!(Bail::all().all(|reason| stats.bailed(reason) == 1));
        assert!(FlushReason::all().all(|reason| stats.completed(reason) == 1));
        assert!(
            DropReason::ALL
                .into_iter()
                .all(|reason| stats.dropped(reason) == 1)
        );
        assert_eq!(stats.super_frames, 0);
    }
}
