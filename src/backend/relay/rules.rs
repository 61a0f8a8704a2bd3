//! What becomes of each request: the state of the relay, without sockets or threads.
//!
//! The daemon behind the relay closes the connection at some messages that front-ends send in the
//! ordinary course. Here they are answered, or kept until the daemon takes them; all others pass.
//! A request goes in, the steps to take come out; no reply of the daemon is needed to decide.
//!
//! Two states matter. *Before `SET_FEATURES`* (and again after `RESET_DEVICE`) the daemon refuses
//! `SET_VRING_ENABLE`, while QEMU sends it as soon as the device exists: the last value for each
//! ring is kept, acknowledged, and replayed right behind `SET_FEATURES`. *After it* enabling
//! passes through.

use std::collections::BTreeMap;

use vhost::vhost_user::message::{FrontendReq, VhostUserProtocolFeatures, VhostUserVirtioFeatures};

use super::fault::Fault;
use super::message::Message;
use super::regions::Regions;

/// What the number in the answer to `GET_QUEUE_NUM` counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueueNumUnit {
    /// Pairs of a receive and a transmit ring, as QEMU takes it.
    #[default]
    Pairs,
    /// Single rings, as cloud-hypervisor takes it.
    Vrings,
}

/// One thing for the relay to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Send the message, with the descriptors that came, to the daemon, and pass its reply on if
    /// there will be one.
    Pass {
        /// The message, perhaps changed.
        message: Message,
        /// Whether the daemon will reply.
        has_reply: bool,
    },
    /// Send a message of the relay's own to the daemon, which will not reply.
    Inject(Message),
    /// Reply to the front-end.
    Reply(Vec<u8>),
    /// Tell the network where the guest with this address is.
    Announce([u8; 6]),
}

/// Smallest MTU of IPv4, and the largest that the field in the configuration space can say.
/// Source: virtio 1.2, 5.1.4.1.
const MTU_RANGE: std::ops::RangeInclusive<u64> = 68..=65535;

const ACK: u64 = 0;
const REFUSED: u64 = 1;

/// The state of one connection.
#[derive(Debug)]
pub(in crate::backend) struct Rules {
    rings: u32,
    queue_num_unit: QueueNumUnit,
    offered_protocol: u64,
    acked_protocol: Option<u64>,
    knows_features: bool,
    has_set_features: bool,
    kept_enables: BTreeMap<u32, u32>,
    status: u64,
    regions: Regions,
}

impl Rules {
    /// The state at the start of a connection. `offered_protocol` is the set of protocol features
    /// that the daemon offers; acknowledgements are always part of it.
    pub(in crate::backend) fn new(
        rings: u32,
        queue_num_unit: QueueNumUnit,
        offered_protocol: u64,
    ) -> Self {
        Self {
            rings,
            queue_num_unit,
            offered_protocol: offered_protocol | VhostUserProtocolFeatures::REPLY_ACK.bits(),
            acked_protocol: None,
            knows_features: false,
            has_set_features: false,
            kept_enables: BTreeMap::new(),
            status: 0,
            regions: Regions::default(),
        }
    }

    /// Takes a request whose shape was checked and says what to do, in this order.
    ///
    /// # Errors
    /// A fault when the front-end takes a feature that was not offered, or uses one that it did
    /// not take.
    pub(super) fn handle(&mut self, message: Message) -> Result<Vec<Step>, Fault> {
        use FrontendReq as Req;

        self.check_negotiated(message.request)?;
        let steps = match message.request {
            Req::GET_FEATURES => {
                self.knows_features = true;
                vec![Step::Pass {
                    message,
                    has_reply: true,
                }]
            }
            Req::SET_FEATURES => self.set_features(message),
            Req::SET_PROTOCOL_FEATURES => return self.set_protocol_features(message),
            Req::SET_VRING_ENABLE if !self.has_set_features => {
                self.kept_enables
                    .insert(message.u32_at(0), message.u32_at(4));
                self.acknowledge(&message, ACK)
            }
            Req::RESET_DEVICE => {
                self.has_set_features = false;
                self.kept_enables.clear();
                self.status = 0;
                vec![self.pass(message)]
            }
            Req::SET_MEM_TABLE => {
                self.regions.replace(&message);
                vec![self.pass(message)]
            }
            Req::ADD_MEM_REG if !self.regions.add(&message)? => self.acknowledge(&message, ACK),
            Req::REM_MEM_REG if !self.regions.remove(&message) => self.acknowledge(&message, ACK),
            Req::GET_QUEUE_NUM => vec![Step::Reply(self.queue_num().to_ne_bytes().to_vec())],
            Req::NET_SET_MTU => {
                let is_legal = MTU_RANGE.contains(&message.u64_at(0));
                self.acknowledge(&message, if is_legal { ACK } else { REFUSED })
            }
            Req::SET_STATUS => {
                self.status = message.u64_at(0);
                self.acknowledge(&message, ACK)
            }
            Req::GET_STATUS => vec![Step::Reply(self.status.to_ne_bytes().to_vec())],
            Req::SEND_RARP => {
                let mut steps = vec![Step::Announce(mac_of(&message))];
                steps.extend(self.acknowledge(&message, ACK));
                steps
            }
            // Nothing in the configuration space can be written.
            Req::SET_CONFIG => self.acknowledge(&message, REFUSED),
            // Source: vhost-user protocol, VHOST_USER_RESET_OWNER: deprecated, may be ignored.
            Req::RESET_OWNER => self.acknowledge(&message, ACK),
            Req::GET_PROTOCOL_FEATURES
            | Req::GET_VRING_BASE
            | Req::GET_CONFIG
            | Req::GET_MAX_MEM_SLOTS => vec![Step::Pass {
                message,
                has_reply: true,
            }],
            _ => vec![self.pass(message)],
        };
        Ok(steps)
    }

    /// Front-ends older than QEMU 7.2 negotiate protocol features and then leave their bit out
    /// of the virtio features; the daemon would take that for a front-end without them.
    fn set_features(&mut self, mut message: Message) -> Vec<Step> {
        let protocol_bit = VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
        let mut features = message.u64_at(0);
        if self.acked_protocol.is_some() {
            features |= protocol_bit;
            let need_reply = message.need_reply;
            message = Message {
                need_reply,
                ..Message::with_u64(message.request, features)
            };
        }
        self.has_set_features = true;
        let mut steps = vec![self.pass(message)];
        let kept_enables = std::mem::take(&mut self.kept_enables);
        // Without the bit every ring is enabled from the start and the message does not exist.
        if features & protocol_bit != 0 {
            steps.extend(kept_enables.into_iter().map(|(ring, value)| {
                let enable = Message::with_ring_state(FrontendReq::SET_VRING_ENABLE, ring, value);
                Step::Inject(enable)
            }));
        }
        steps
    }

    fn set_protocol_features(&mut self, message: Message) -> Result<Vec<Step>, Fault> {
        let features = message.u64_at(0);
        if features & !self.offered_protocol != 0 {
            return Err(Fault::Value {
                request: message.request,
                value: features,
            });
        }
        self.acked_protocol = Some(features);
        Ok(vec![self.pass(message)])
    }

    /// Whether the request belongs to a feature that the front-end has taken.
    fn check_negotiated(&self, request: FrontendReq) -> Result<(), Fault> {
        use FrontendReq as Req;
        use VhostUserProtocolFeatures as Feature;

        let feature = match request {
            Req::GET_QUEUE_NUM => Feature::MQ,
            Req::SEND_RARP => Feature::RARP,
            Req::NET_SET_MTU => Feature::MTU,
            Req::GET_CONFIG | Req::SET_CONFIG => Feature::CONFIG,
            Req::RESET_DEVICE => Feature::RESET_DEVICE,
            Req::GET_MAX_MEM_SLOTS | Req::ADD_MEM_REG | Req::REM_MEM_REG => {
                Feature::CONFIGURE_MEM_SLOTS
            }
            Req::GET_STATUS | Req::SET_STATUS => Feature::STATUS,
            _ => return Ok(()),
        };
        if self.has_taken(feature) {
            Ok(())
        } else {
            Err(Fault::NotNegotiated(request))
        }
    }

    fn queue_num(&self) -> u64 {
        match self.queue_num_unit {
            QueueNumUnit::Pairs => u64::from(self.rings / 2),
            QueueNumUnit::Vrings => u64::from(self.rings),
        }
    }

    /// A request that the daemon acknowledges when asked to. One that asks although that was not
    /// negotiated is passed on without asking, so that both sides agree about what comes back.
    fn pass(&self, mut message: Message) -> Step {
        message.need_reply &= self.acknowledges();
        let has_reply = message.need_reply;
        Step::Pass { message, has_reply }
    }

    fn acknowledge(&self, message: &Message, value: u64) -> Vec<Step> {
        if message.need_reply && self.acknowledges() {
            return vec![Step::Reply(value.to_ne_bytes().to_vec())];
        }
        Vec::new()
    }

    /// The daemon acknowledges once the front-end has read the features (which hold the bit of
    /// protocol features) and has taken the one for acknowledgements.
    fn acknowledges(&self) -> bool {
        self.knows_features && self.has_taken(VhostUserProtocolFeatures::REPLY_ACK)
    }

    fn has_taken(&self, feature: VhostUserProtocolFeatures) -> bool {
        self.acked_protocol
            .is_some_and(|acked| acked & feature.bits() != 0)
    }
}

/// The address lies in the first six bytes of the number, in memory order.
fn mac_of(message: &Message) -> [u8; 6] {
    let mut mac = [0; 6];
    mac.copy_from_slice(&message.u64_at(0).to_ne_bytes()[..6]);
    mac
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROTOCOL_BIT: u64 = 1 << 30;
    const ALL: VhostUserProtocolFeatures = VhostUserProtocolFeatures::MQ
        .union(VhostUserProtocolFeatures::RARP)
        .union(VhostUserProtocolFeatures::REPLY_ACK)
        .union(VhostUserProtocolFeatures::MTU)
        .union(VhostUserProtocolFeatures::STATUS)
        .union(VhostUserProtocolFeatures::RESET_DEVICE);

    fn rules(unit: QueueNumUnit) -> Rules {
        Rules::new(4, unit, ALL.bits())
    }

    fn plain(request: FrontendReq) -> Message {
        Message {
            request,
            need_reply: false,
            payload: Vec::new(),
        }
    }

    fn enable(ring: u32, value: u32) -> Message {
        Message::with_ring_state(FrontendReq::SET_VRING_ENABLE, ring, value)
    }

    fn wanting_reply(message: Message) -> Message {
        Message {
            need_reply: true,
            ..message
        }
    }

    fn number(value: u64) -> Step {
        Step::Reply(value.to_ne_bytes().to_vec())
    }

    /// A connection on which everything was taken.
    fn negotiated() -> Rules {
        let mut rules = rules(QueueNumUnit::Pairs);
        rules.handle(plain(FrontendReq::GET_FEATURES)).unwrap();
        let message = Message::with_u64(FrontendReq::SET_PROTOCOL_FEATURES, ALL.bits());
        rules.handle(message).unwrap();
        rules
    }

    #[test]
    fn early_enables_are_acked_and_replayed_behind_the_features() {
        let mut rules = negotiated();
        for message in [enable(1, 1), enable(0, 0), enable(0, 1)] {
            assert_eq!(rules.handle(wanting_reply(message)), Ok(vec![number(0)]));
        }

        let features = Message::with_u64(FrontendReq::SET_FEATURES, PROTOCOL_BIT);
        assert_eq!(
            rules.handle(features.clone()),
            Ok(vec![
                Step::Pass {
                    message: features.clone(),
                    has_reply: false
                },
                Step::Inject(enable(0, 1)),
                Step::Inject(enable(1, 1)),
            ])
        );
        let late = wanting_reply(enable(2, 1));
        assert_eq!(
            rules.handle(late.clone()),
            Ok(vec![Step::Pass {
                message: late,
                has_reply: true
            }])
        );
        assert_eq!(
            rules.handle(features).unwrap().len(),
            1,
            "nothing is replayed twice"
        );
    }

    #[test]
    fn reset_forgets_enables_and_keeps_the_next_ones() {
        let mut rules = negotiated();
        rules
            .handle(Message::with_u64(FrontendReq::SET_FEATURES, PROTOCOL_BIT))
            .unwrap();
        rules.handle(plain(FrontendReq::RESET_DEVICE)).unwrap();

        assert_eq!(rules.handle(enable(3, 1)), Ok(vec![]));
        let steps = rules
            .handle(Message::with_u64(FrontendReq::SET_FEATURES, PROTOCOL_BIT))
            .unwrap();
        assert_eq!(steps[1..], [Step::Inject(enable(3, 1))]);
    }

    #[test]
    fn protocol_bit_is_added_only_for_those_who_negotiated() {
        let passed = |mut rules: Rules, features| match &rules
            .handle(Message::with_u64(FrontendReq::SET_FEATURES, features))
            .unwrap()[0]
        {
            Step::Pass { message, .. } => message.u64_at(0),
            step => panic!("{step:?}"),
        };
        assert_eq!(passed(negotiated(), 3), 3 | PROTOCOL_BIT);
        assert_eq!(passed(rules(QueueNumUnit::Pairs), 3), 3);
    }

    #[test]
    fn queue_num_is_said_in_the_unit_of_the_front_end() {
        for (unit, expected) in [(QueueNumUnit::Pairs, 2), (QueueNumUnit::Vrings, 4)] {
            let mut rules = rules(unit);
            rules
                .handle(Message::with_u64(FrontendReq::SET_PROTOCOL_FEATURES, 1))
                .unwrap();
            assert_eq!(
                rules.handle(plain(FrontendReq::GET_QUEUE_NUM)),
                Ok(vec![number(expected)])
            );
        }
    }

    #[test]
    fn status_mtu_and_rarp_are_answered_here() {
        let mut rules = negotiated();
        assert_eq!(
            rules.handle(Message::with_u64(FrontendReq::SET_STATUS, 0xf)),
            Ok(vec![])
        );
        assert_eq!(
            rules.handle(plain(FrontendReq::GET_STATUS)),
            Ok(vec![number(0xf)])
        );

        for (mtu, answer) in [(67, 1), (68, 0), (1500, 0), (65535, 0), (65536, 1)] {
            let message = wanting_reply(Message::with_u64(FrontendReq::NET_SET_MTU, mtu));
            assert_eq!(rules.handle(message), Ok(vec![number(answer)]), "{mtu}");
        }

        let mac = u64::from_ne_bytes([0x52, 0x54, 0, 1, 2, 3, 0, 0]);
        assert_eq!(
            rules.handle(wanting_reply(Message::with_u64(
                FrontendReq::SEND_RARP,
                mac
            ))),
            Ok(vec![Step::Announce([0x52, 0x54, 0, 1, 2, 3]), number(0)])
        );
    }

    #[test]
    fn features_not_offered_or_not_taken_are_faults() {
        let mut rules = rules(QueueNumUnit::Pairs);
        let log = VhostUserProtocolFeatures::LOG_SHMFD.bits();
        assert!(
            rules
                .handle(Message::with_u64(FrontendReq::SET_PROTOCOL_FEATURES, log))
                .is_err()
        );
        for request in [FrontendReq::GET_STATUS, FrontendReq::RESET_DEVICE] {
            assert_eq!(
                rules.handle(plain(request)),
                Err(Fault::NotNegotiated(request))
            );
        }
    }

    #[test]
    fn reply_is_expected_exactly_when_the_daemon_sends_one() {
        let mut fresh = rules(QueueNumUnit::Pairs);
        let asks = wanting_reply(plain(FrontendReq::SET_OWNER));
        assert_eq!(
            fresh.handle(asks.clone()),
            Ok(vec![Step::Pass {
                message: plain(FrontendReq::SET_OWNER),
                has_reply: false
            }]),
        );
        assert_eq!(
            negotiated().handle(asks.clone()),
            Ok(vec![Step::Pass {
                message: asks,
                has_reply: true
            }]),
        );
    }
}
