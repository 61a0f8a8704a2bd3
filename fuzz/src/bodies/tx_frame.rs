//! The virtio-net header with a frame from the guest, through the transmit queue and, for an
//! uplink without offloads, through segmentation.
//!
//! Input: features and a switch (byte), cut (word), filler (word), header (12 bytes), then the frame, which is
//! continued by that many bytes more.

use std::iter;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::Arc;

use vhost_user_gro::device::{
    Features, Offloads, Pieces, RingConfig, SplitRing, Tx, TxDrop, TxFrame, TxQueue,
};
use vhost_user_gro::gso;
use vhost_user_gro::sys::GuestMap;
use vhost_user_gro::wire::VnetHdr;
use vhost_user_gro::wire::vnet_hdr::{
    F_NEEDS_CSUM, F_UDP_TUNNEL_CSUM, GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4,
    VNET_HDR_LEN,
};

use super::driver_model::{DESC, Driver};
use super::engine::set_payload_len;
use super::input::Input;
use crate::support::cut::{Headers, cut};

/// Entries of the ring.
const SIZE: u16 = 64;
/// Most segments that a filler makes; a smaller one does no less, and sooner.
const MAX_SEGS: usize = 128;
/// Bit of the first byte: the length fields of a frame with a filler stay as they are.
const LYING: u8 = 0x40;
/// Features that a bit of the input takes away, lowest first.
const OPTIONAL: [Features; 6] = [
    Features::CSUM,
    Features::HOST_TSO4,
    Features::HOST_TSO6,
    Features::HOST_ECN,
    Features::HOST_USO,
    Features::EVENT_IDX,
];

pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (Some(without), Some(cut), Some(filler)) = (input.byte(), input.word(), input.word())
    else {
        return;
    };
    let features = features(without);
    let chain = chain(input, filler.into(), without & LYING == 0);

    let mut driver = Driver::new(SIZE, 0);
    let mut tx = queue(&driver, features);
    driver.post_tx(&chain, &pieces(chain.len(), cut));
    let plain = [0; VNET_HDR_LEN + 60];
    driver.post_tx(&plain, &[u32::try_from(plain.len()).unwrap()]);

    // Whatever the first frame is, the one behind it is sent.
    for _ in 0..2 {
        assert!(tx.take().expect("the ring is sound").is_some());
    }
    match tx
        .frame(0, &mut Pieces::default())
        .expect("a frame was posted")
    {
        Tx::Dropped(reason) => check_drop(reason, &chain),
        Tx::Frame(frame) => check_frame(&frame, &chain, features.host_offloads()),
    }
    assert!(matches!(
        tx.frame(1, &mut Pieces::default()),
        Some(Tx::Frame(_))
    ));
    tx.complete(2);
    assert_eq!(tx.take(), Ok(None));
    tx.publish();
    let used = driver.collect_all();
    assert!(used.len() == 2 && used.iter().all(|chain| chain.len == 0));
    assert_eq!(tx.stats().frames + tx.stats().drops.total(), 2);
}

/// Header and frame, continued by `filler` bytes.
fn chain(mut input: Input<'_>, filler: usize, is_lengthened: bool) -> Vec<u8> {
    let header = input.take(VNET_HDR_LEN);
    let vnet = header.first_chunk().map(VnetHdr::decode);
    let filler = match vnet.filter(|vnet| vnet.gso_type != GSO_NONE && vnet.gso_size > 0) {
        Some(vnet) => filler.min(MAX_SEGS * usize::from(vnet.gso_size)),
        None => filler,
    };
    let mut frame = input.rest().to_vec();
    match Headers::of(&frame) {
        Ok(headers) if is_lengthened => {
            let payload = frame.len() - headers.payload;
            set_payload_len(&mut frame, payload + filler);
        }
        _ => frame.extend(iter::repeat_n(0x5a, filler)),
    }
    [header, &frame].concat()
}

/// The features of a guest that acked all but those whose bits are set.
pub fn features(without: u8) -> Features {
    let all = OPTIONAL.iter().enumerate();
    all.filter(|(bit, _)| without & 1 << bit == 0)
        .fold(Features::VERSION_1, |features, (_, one)| features | *one)
}

fn queue(driver: &Driver, features: Features) -> TxQueue {
    let config = RingConfig {
        size: driver.size,
        desc: DESC,
        avail: driver.avail(),
        used: driver.used(),
        next_avail: 0,
        event_idx: features.contains(Features::EVENT_IDX),
        indirect: false,
    };
    let map = Rc::new(GuestMap::new(Arc::clone(&driver.memory)));
    let ring = SplitRing::new(config, map).expect("the driver's ring is sound");
    TxQueue::new(ring, features, 7)
}

/// Sizes of the buffers that a chain of `len` bytes is posted in: all but the last have `cut`
/// bytes, or more if there would be too many.
fn pieces(len: usize, cut: u16) -> Vec<u32> {
    let most = usize::from(SIZE) - 2;
    let size = usize::from(cut).max(len.div_ceil(most)).max(1);
    let mut left = len;
    let sizes = iter::from_fn(|| {
        let now = size.min(left);
        left -= now;
        (now > 0).then(|| u32::try_from(now).unwrap())
    });
    let sizes: Vec<u32> = sizes.collect();
    // A chain has at least one buffer.
    if sizes.is_empty() { vec![0] } else { sizes }
}

/// A frame that asks for nothing is refused for its length only.
fn check_drop(reason: TxDrop, chain: &[u8]) {
    let flags = F_NEEDS_CSUM | F_UDP_TUNNEL_CSUM;
    let asks_for_nothing = |header: &[u8]| header[0] & flags == 0 && header[1] == GSO_NONE;
    let is_good_length = (VNET_HDR_LEN + 14..65535).contains(&chain.len());
    assert!(
        !is_good_length || !asks_for_nothing(chain),
        "refused for {reason:?}"
    );
    assert_ne!(reason, TxDrop::BadChain);
}

fn check_frame(frame: &TxFrame<'_>, chain: &[u8], allowed: Offloads) {
    let (header, sent) = chain.split_first_chunk().expect("a header was checked");
    let asked = VnetHdr::decode(header);
    let bytes = bytes(frame);
    assert_eq!(bytes, sent);
    let vnet = &frame.vnet;
    check_header(vnet, &asked, frame, allowed);
    if vnet.gso_type != GSO_NONE {
        check_segments(&bytes, vnet);
    } else if vnet.flags & F_NEEDS_CSUM != 0 {
        let mut complete = bytes;
        gso::complete_checksum(&mut complete, vnet).expect("its place was checked");
    }
}

/// Rule TX-5: the header that goes on says no more than was asked for and allowed.
fn check_header(vnet: &VnetHdr, asked: &VnetHdr, frame: &TxFrame<'_>, allowed: Offloads) {
    let is_gso = vnet.gso_type != GSO_NONE;
    assert_eq!(vnet.gso_type, asked.gso_type);
    assert_eq!(vnet.flags, asked.flags & F_NEEDS_CSUM);
    assert_eq!(vnet.num_buffers, 0);
    if vnet.flags == 0 {
        assert_eq!(*vnet, VnetHdr::default());
        return;
    }
    assert!(allowed.csum);
    assert_eq!(vnet.csum_start, asked.csum_start);
    assert_eq!(vnet.csum_offset, asked.csum_offset);
    let field_end = usize::from(vnet.csum_start) + usize::from(vnet.csum_offset) + 2;
    let hdr_len = usize::from(vnet.hdr_len);
    assert!(field_end <= hdr_len && hdr_len <= frame.frame_len());
    assert_eq!(vnet.gso_size, if is_gso { asked.gso_size } else { 0 });
    if !is_gso {
        return;
    }
    assert!(hdr_len <= frame.head.len());
    assert!(!matches!(vnet.gso_size, 0 | 65535));
    let (is_allowed, csum_offset) = match vnet.gso_type & !GSO_ECN {
        GSO_TCPV4 => (allowed.tso4, 16),
        GSO_TCPV6 => (allowed.tso6, 16),
        GSO_UDP_L4 => (allowed.uso && vnet.gso_type & GSO_ECN == 0, 6),
        other => panic!("type {other}"),
    };
    assert!(is_allowed && (allowed.ecn || vnet.gso_type & GSO_ECN == 0));
    assert_eq!(vnet.csum_offset, csum_offset);
}

/// Segments hold the payload, all of it, once, in order; where the frame is sound, they are those of
/// the second opinion.
fn check_segments(bytes: &[u8], vnet: &VnetHdr) {
    let hdr_len = usize::from(vnet.hdr_len);
    let is_sound = Headers::of(bytes).is_ok_and(|headers| headers.payload == hdr_len);
    if !is_sound || bytes.len() == hdr_len {
        segments(bytes, vnet);
        return;
    }
    // The sums of the segments are made from that in the frame, which a guest can make wrong.
    let whole = with_right_sums(bytes);
    let Some(segments) = segments(&whole, vnet) else {
        return;
    };
    let right = cut(vnet, &whole).expect("was put right");
    assert_eq!(segments.len(), right.len());
    for (nth, (segment, right)) in segments.iter().zip(&right).enumerate() {
        let differs = || segment.iter().zip(right).position(|(a, b)| a != b);
        assert!(segment == right, "segment {nth} differs at {:?}", differs());
    }
}

/// The segments of a frame that can be cut.
fn segments(bytes: &[u8], vnet: &VnetHdr) -> Option<Vec<Vec<u8>>> {
    let mut scratch = vec![0; bytes.len()];
    let mut segments = Vec::new();
    let done = gso::segment(iter::once(bytes), vnet, &mut scratch, |segment| {
        segments.push(segment.to_vec());
        ControlFlow::Continue(())
    });
    if done.is_err() {
        assert!(segments.is_empty());
        return None;
    }
    let hdr_len = usize::from(vnet.hdr_len);
    // Slice by slice: libFuzzer makes a comparison of single bytes slow.
    let mut rest = &bytes[hdr_len..];
    for segment in &segments {
        let payload = &segment[hdr_len..];
        assert!(rest.starts_with(payload));
        rest = &rest[payload.len()..];
    }
    assert!(rest.is_empty());
    let full = hdr_len + usize::from(vnet.gso_size);
    let (last, others) = segments.split_last().expect("at least one");
    assert!(others.iter().all(|one| one.len() == full));
    assert!(last.len() <= full);
    Some(segments)
}

fn with_right_sums(bytes: &[u8]) -> Vec<u8> {
    let mut whole = bytes.to_vec();
    let headers = Headers::of(bytes).expect("is sound");
    if headers.is_ipv4 {
        let sum = headers.ipv4_checksum(&whole).to_be_bytes();
        whole[headers.l3 + 10..headers.l3 + 12].copy_from_slice(&sum);
    }
    let at = headers.l4 + headers.csum_offset();
    let sum = headers.pseudo_sum(&whole).to_be_bytes();
    whole[at..at + 2].copy_from_slice(&sum);
    whole
}

/// All bytes of a frame, wherever they lie.
fn bytes(frame: &TxFrame<'_>) -> Vec<u8> {
    let mut bytes = frame.head.to_vec();
    for slice in frame.rest() {
        let start = bytes.len();
        bytes.resize(start + slice.len(), 0);
        slice.copy_to(&mut bytes[start..]);
    }
    assert_eq!(bytes.len(), frame.frame_len());
    bytes
}
