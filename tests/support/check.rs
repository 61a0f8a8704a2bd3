//! Which frames a delivered packet was made of, and whether it is what the rules want.

use etherparse::checksum::Sum16BitWords;
use vhost_user_gro::gro::GroTypes;
use vhost_user_gro::wire::VnetHdr;
use vhost_user_gro::wire::vnet_hdr::{
    F_DATA_VALID, F_NEEDS_CSUM, GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4,
};

use super::context::Delivered;
use super::cut::{Headers, cut, has_right_checksum, word};
use super::packet::{Built, Checksum};

/// The bit "don't fragment" beside the fragment offset.
const DF: u16 = 0x4000;

/// Finds the frames of each delivered packet by its bytes: the same frame, or payload that follows
/// on. Each frame is found once, the first that arrived of equal ones.
pub fn attribute(delivered: &[Delivered], inputs: &[Built]) -> Vec<Result<Vec<usize>, String>> {
    let mut used = vec![false; inputs.len()];
    let each = delivered.iter();
    each.map(|packet| {
        let from = frames_of(packet, inputs, &used)?;
        from.iter().for_each(|&i| used[i] = true);
        Ok(from)
    })
    .collect()
}

fn frames_of(packet: &Delivered, inputs: &[Built], used: &[bool]) -> Result<Vec<usize>, String> {
    let unused = || (0..inputs.len()).filter(|&i| !used[i]);
    if let Some(same) = unused().find(|&i| is_same_frame(&packet.bytes, &inputs[i])) {
        return Ok(vec![same]);
    }
    let bytes = &packet.bytes;
    let first = unused().find(|&i| {
        let input = &inputs[i];
        bytes.len() > input.payload
            && ports(bytes, input) == ports(&input.bytes, input)
            && continues(&bytes[input.payload..], input)
    });
    let first = first.ok_or("its payload begins like that of no input")?;
    let mut from = vec![first];
    let mut rest = &bytes[inputs[first].payload + inputs[first].payload_len..];
    while !rest.is_empty() {
        let next = unused().find(|i| {
            !from.contains(i)
                && ports(bytes, &inputs[*i]) == ports(&inputs[*i].bytes, &inputs[*i])
                && continues(rest, &inputs[*i])
        });
        let next = next.ok_or_else(|| {
            format!(
                "{} bytes behind inputs {from:?} come from no input",
                rest.len()
            )
        })?;
        from.push(next);
        rest = &rest[inputs[next].payload_len..];
    }
    Ok(from)
}

/// Whether the bytes are those of the input, but for a partial checksum that was completed.
fn is_same_frame(bytes: &[u8], input: &Built) -> bool {
    if input.csum != Checksum::Partial || bytes.len() != input.bytes.len() {
        return bytes == input.bytes;
    }
    let at = checksum_at(input);
    bytes[..at] == input.bytes[..at] && bytes[at + 2..] == input.bytes[at + 2..]
}

fn checksum_at(input: &Built) -> usize {
    input.l4 + usize::from(input.meta.vnet.csum_offset)
}

fn continues(payload: &[u8], input: &Built) -> bool {
    input.payload_len > 0 && payload.starts_with(input.payload())
}

fn ports<'a>(bytes: &'a [u8], input: &Built) -> Option<&'a [u8]> {
    bytes.get(input.l4..input.l4 + 4)
}

/// Holds a packet made of the frames `from` against the rules of sections 7.1, 7.2 and 7.4 and the
/// invariants INV-4, INV-7, INV-8, INV-9 and INV-10.
pub fn check(
    packet: &Delivered,
    from: &[&Built],
    types: GroTypes,
    was_held: bool,
) -> Result<(), String> {
    let is_from_host = matches!(from, [only] if only.meta.vnet.gso_type != GSO_NONE);
    // Older guests take 64, and so ours have no more; what the host merged is passed on.
    let datagrams = if is_from_host { 128 } else { 64 };
    guest_takes(&packet.vnet, &packet.bytes, datagrams)?;
    is_negotiated(&packet.vnet, types)?;
    match from {
        [] => Err("it comes from no input".into()),
        [only] => check_unmerged(packet, only, types, was_held),
        _ => check_merged(packet, from),
    }
}

/// What a Linux guest drops or takes for something else (section 7.4).
fn guest_takes(vnet: &VnetHdr, bytes: &[u8], datagrams: usize) -> Result<(), String> {
    let refuse = |what: &str| Err(format!("the guest refuses it: {what}: {vnet:?}"));
    if vnet.flags & F_NEEDS_CSUM != 0 {
        let field = usize::from(vnet.csum_start) + usize::from(vnet.csum_offset);
        if field + 2 > bytes.len() {
            return refuse("the checksum field is beyond the frame");
        }
        if vnet.flags & F_DATA_VALID != 0 {
            return refuse("its checksum is both partial and verified");
        }
    }
    let kind = vnet.gso_type & !GSO_ECN;
    if kind == GSO_NONE {
        return Ok(());
    }
    let (csum_offset, l4_len) = match kind {
        GSO_TCPV4 | GSO_TCPV6 => (16, 20),
        GSO_UDP_L4 if vnet.gso_type & GSO_ECN != 0 => return refuse("ECN with UDP"),
        GSO_UDP_L4 => (6, 8),
        _ => return refuse("unknown gso_type"),
    };
    let start = usize::from(vnet.csum_start);
    let gso_size = usize::from(vnet.gso_size);
    if vnet.flags & F_NEEDS_CSUM == 0 {
        return refuse("GSO without NEEDS_CSUM");
    }
    if gso_size == 0 || gso_size == 65535 {
        return refuse("gso_size");
    }
    if vnet.csum_offset != csum_offset || start + l4_len > bytes.len() {
        return refuse("csum_start or csum_offset");
    }
    let payload = bytes.len().saturating_sub(usize::from(vnet.hdr_len));
    if payload <= gso_size {
        return refuse("no more payload than gso_size");
    }
    if kind == GSO_UDP_L4 && payload > gso_size * datagrams {
        return refuse("too many datagrams");
    }
    Ok(())
}

fn is_negotiated(vnet: &VnetHdr, types: GroTypes) -> Result<(), String> {
    let acked = match vnet.gso_type & !GSO_ECN {
        GSO_NONE => vnet.flags == 0 || types.csum,
        GSO_TCPV4 => types.csum && types.tcp4,
        GSO_TCPV6 => types.csum && types.tcp6,
        // The family was checked when the packet was cut.
        GSO_UDP_L4 => types.csum && (types.udp4 || types.udp6),
        _ => false,
    };
    if acked {
        Ok(())
    } else {
        Err(format!("the guest did not negotiate it: {vnet:?}"))
    }
}

/// A frame that nothing joined: delivered as it came.
fn check_unmerged(
    packet: &Delivered,
    input: &Built,
    types: GroTypes,
    was_held: bool,
) -> Result<(), String> {
    let host = input.meta.vnet;
    let mut right = VnetHdr {
        num_buffers: packet.vnet.num_buffers,
        ..VnetHdr::default()
    };
    let mut bytes = input.bytes.clone();
    if host.flags & F_NEEDS_CSUM == 0 {
        let may_be_valid = host.flags & F_DATA_VALID != 0 || has_right_checksum(&bytes);
        let says_valid = packet.vnet.flags == F_DATA_VALID;
        if types.csum && may_be_valid && (was_held || says_valid) {
            right.flags = F_DATA_VALID;
        }
    } else if types.csum {
        right.flags = F_NEEDS_CSUM;
        right.csum_start = host.csum_start;
        right.csum_offset = host.csum_offset;
        if is_host_packet(input) {
            right.gso_type = host.gso_type;
            right.gso_size = host.gso_size;
            right.hdr_len = u16::try_from(input.payload).expect("headers are small");
        }
    } else {
        complete_checksum(&mut bytes, &host);
    }
    if packet.bytes != bytes {
        return Err("its bytes are not what they should be".into());
    }
    if packet.vnet != right {
        return Err(format!(
            "virtio-net header {:?}, not {right:?}",
            packet.vnet
        ));
    }
    let payload = u32::try_from(input.payload_len).expect("a frame is small");
    let segs = if is_host_packet(input) {
        payload.div_ceil(host.gso_size.into())
    } else {
        1
    };
    if packet.segs != segs {
        return Err(format!("{} segments, not {segs}", packet.segs));
    }
    Ok(())
}

/// Whether the host merged this frame. With no more payload than `gso_size` it takes the form of
/// a merged packet, but is none.
fn is_host_packet(input: &Built) -> bool {
    let host = input.meta.vnet;
    host.gso_type != GSO_NONE && input.payload_len > usize::from(host.gso_size)
}

/// What becomes of a partial checksum that the guest does not take (rule TX-8).
fn complete_checksum(bytes: &mut [u8], host: &VnetHdr) {
    let start = usize::from(host.csum_start);
    let field = start + usize::from(host.csum_offset);
    let sum = Sum16BitWords::new().add_slice(&bytes[start..]);
    let checksum = match sum.ones_complement().to_be() {
        0 if host.csum_offset == 6 => 0xffff,
        checksum => checksum,
    };
    bytes[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
}

/// A packet made of several frames: its header says so, and cut apart it gives them back.
fn check_merged(packet: &Delivered, from: &[&Built]) -> Result<(), String> {
    let headers = Headers::of(&packet.bytes)?;
    let field = |len: usize| u16::try_from(len).expect("headers are small");
    let right = VnetHdr {
        flags: F_NEEDS_CSUM,
        gso_type: match (headers.is_tcp, headers.is_ipv4) {
            (true, true) => GSO_TCPV4,
            (true, false) => GSO_TCPV6,
            (false, _) => GSO_UDP_L4,
        },
        hdr_len: field(headers.payload),
        gso_size: field(from[0].payload_len),
        csum_start: field(headers.l4),
        csum_offset: field(headers.csum_offset()),
        num_buffers: packet.vnet.num_buffers,
    };
    if packet.vnet != right {
        return Err(format!(
            "virtio-net header {:?}, not {right:?}",
            packet.vnet
        ));
    }
    let segments = cut(&packet.vnet, &packet.bytes)?;
    if segments.len() != from.len() || usize::try_from(packet.segs) != Ok(from.len()) {
        return Err(format!(
            "{} segments, which cut into {}, of {} frames",
            packet.segs,
            segments.len(),
            from.len()
        ));
    }
    let l3 = headers.l3;
    let has_fixed_id = headers.is_ipv4
        && word(&packet.bytes, l3 + 6) & DF != 0
        && from
            .iter()
            .all(|input| word(&input.bytes, l3 + 4) == word(&packet.bytes, l3 + 4));
    for (i, (segment, input)) in segments.iter().zip(from).enumerate() {
        let comparable = with_allowed_differences(segment, input, headers, has_fixed_id);
        if comparable != input.bytes {
            let differs = comparable
                .iter()
                .zip(&input.bytes)
                .position(|(a, b)| a != b);
            return Err(format!(
                "cut apart, segment {i} ({} bytes) is not the frame ({} bytes) that came in: \
                 they differ at byte {differs:?}",
                comparable.len(),
                input.bytes.len()
            ));
        }
    }
    Ok(())
}

/// The segment with those fields of the original that may differ, and only them (INV-4).
fn with_allowed_differences(
    segment: &[u8],
    input: &Built,
    headers: Headers,
    has_fixed_id: bool,
) -> Vec<u8> {
    let mut bytes = segment.to_vec();
    let mut take = |range: std::ops::Range<usize>| {
        if let Some(original) = input.bytes.get(range.clone()) {
            bytes[range].copy_from_slice(original);
        }
    };
    let Headers { l3, l4, .. } = headers;
    let ip_csum = l3 + 10..l3 + 12;
    let l4_csum = l4 + headers.csum_offset()..l4 + headers.csum_offset() + 2;
    let both_zero = |at: usize| {
        let (a, b) = (word(segment, at), word(&input.bytes, at));
        matches!((a, b), (0, 0xffff) | (0xffff, 0))
    };
    if headers.is_ipv4 && has_fixed_id {
        take(l3 + 4..l3 + 6);
        take(ip_csum.clone());
    }
    if headers.is_ipv4 && both_zero(ip_csum.start) {
        take(ip_csum);
    }
    if input.csum == Checksum::Partial || (headers.is_tcp && both_zero(l4_csum.start)) {
        take(l4_csum);
    }
    bytes
}
