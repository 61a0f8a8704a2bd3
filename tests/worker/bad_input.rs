//! Nothing that an uplink can say makes the pair panic or lose count.

use crate::conservation::Random;
use crate::packet::{A, B, Built, tcp4, tcp6, udp4, udp6};
use crate::recording::Recording;
use crate::rig::{BUFFER, Rig, all_offloads, at_us, config, linux, numbered, plain};

use vhost_user_gro::device::Features;
use vhost_user_gro::uplink::Offloads;
use vhost_user_gro::wire::VnetHdr;
use vhost_user_gro::wire::vnet_hdr::VNET_HDR_LEN;
use vhost_user_gro::worker::PairConfig;

/// Messages of a run; a build without optimisation takes a tenth.
const MESSAGES: u32 = if cfg!(debug_assertions) {
    10_000
} else {
    100_000
};

fn templates() -> Vec<Built> {
    vec![
        tcp4(A, B).payload(900).build(),
        tcp4(A, B).payload(3000).partial_csum().build(),
        tcp6(A, B).payload(900).build(),
        udp4(A, B).payload(300).build(),
        tcp4(A, B).vlan(vec![(0x8100, 1)]).payload(40).build(),
    ]
}

/// A message of random bytes, or a sound one with some of its bytes replaced.
fn message(random: &mut Random, templates: &[Built]) -> Vec<u8> {
    let mut bytes = if random.below(4) == 0 {
        let len = random.below(200);
        (0..len).map(|_| random.byte()).collect()
    } else {
        let frame = &templates[random.below(templates.len())];
        [&frame.meta.vnet.encode()[..], &frame.bytes].concat()
    };
    let hdr_len = bytes.len().min(VNET_HDR_LEN);
    for _ in 0..random.below(5) {
        if hdr_len > 0 {
            let at = random.below(hdr_len);
            bytes[at] = random.byte() & 7;
        }
    }
    for _ in 0..random.below(3) {
        if !bytes.is_empty() {
            let at = random.below(bytes.len().min(90));
            bytes[at] = random.byte();
        }
    }
    let len = bytes.len();
    if random.below(5) == 0 && len > 0 {
        bytes.truncate(1 + random.below(len));
    }
    // An empty message is how this uplink says that its other end is gone.
    if bytes.is_empty() {
        bytes.push(0);
    }
    bytes
}

#[test]
fn f69_any_bytes_are_counted_and_harm_nothing() {
    let templates = templates();
    for (seed, features) in [
        (1, linux() | Features::MTU),
        (2, plain() | Features::MTU),
        (3, linux() | Features::GUEST_USO4 | Features::GUEST_USO6),
        (4, plain() | Features::GUEST_CSUM | Features::GUEST_TSO4),
    ] {
        let mut random = Random::new(seed);
        let mut rig = Rig::unstarted(
            &PairConfig {
                mtu: Some(1500),
                ..config()
            },
            64,
        );
        rig.features = features;
        rig.rx.post_rx(64, BUFFER);
        rig.apply(at_us(0));
        let mut now = at_us(0);
        let mut injected = 0;
        while injected < u64::from(MESSAGES) / 4 {
            for _ in 0..random.below(20) {
                let message = message(&mut random, &templates);
                injected += u64::from(rig.peer.inject_raw(&[&message]).is_ok());
            }
            now = rig.rest(now);
            let (_, chains) = rig.rx.collect();
            rig.rx.give_back(&chains);
            rig.rx.kick();
        }
        for _ in 0..20 {
            now = rig.rest(now);
            let (_, chains) = rig.rx.collect();
            rig.rx.give_back(&chains);
            rig.rx.kick();
        }
        let stats = rig.pair.stats();
        let receive = stats.receive;
        assert_eq!(
            injected,
            receive.gro.frames + receive.above_mtu + stats.uplink.rx_truncated,
            "{stats:?}"
        );
        assert_eq!(receive.pool_in_use, 0);
        let gro = receive.gro;
        let refused: u64 = vhost_user_gro::gro::DropReason::ALL
            .iter()
            .map(|&reason| gro.dropped(reason))
            .sum();
        // What the host had merged comes out as more frames than went in.
        let out = receive.frames + receive.dropped_too_big;
        assert!(gro.frames - refused <= out, "{stats:?}");
        if gro.host_gso == 0 {
            assert_eq!(gro.frames - refused, out, "{stats:?}");
        }
        assert!(refused > 0 && gro.merged + gro.held + gro.normal > 0);
        assert_eq!(stats.internal_errors, 0);
    }
}

/// A frame from the guest whose header is random, most of it near what would be right.
fn from_the_guest(random: &mut Random, templates: &[Built]) -> Vec<u8> {
    const WORDS: [u16; 8] = [0, 1, 14, 34, 54, 1448, 65534, 65535];
    const TYPES: [u8; 8] = [0, 1, 3, 4, 5, 0x81, 0x84, 0x21];
    let built = &templates[random.below(templates.len())];
    let right = VnetHdr {
        flags: 1,
        gso_type: TYPES[random.below(TYPES.len())],
        hdr_len: 0,
        gso_size: 500,
        csum_start: u16::try_from(built.l4).unwrap(),
        csum_offset: if built.protocol == 17 { 6 } else { 16 },
        num_buffers: 0,
    };
    let mut header = right.encode();
    for _ in 0..random.below(3) {
        let at = 2 + 2 * random.below(5);
        let word = WORDS[random.below(WORDS.len())];
        header[at..at + 2].copy_from_slice(&word.to_le_bytes());
    }
    if random.below(6) == 0 {
        header[0] = random.byte();
    }
    let mut frame = built.bytes.clone();
    for _ in 0..random.below(3) {
        let at = random.below(frame.len().min(90));
        frame[at] = random.byte();
    }
    if random.below(4) == 0 {
        frame.truncate(random.below(built.bytes.len()));
    }
    [&header[..], &frame].concat()
}

#[test]
fn f38_no_frame_of_the_guest_harms_or_stops_its_queue_whoever_cuts_it() {
    let mut templates = templates();
    templates.push(udp6(A, B).payload(2000).build());
    templates.push(tcp4(A, B).payload(20_000).build());
    templates.push(
        tcp6(A, B)
            .extensions(vec![(0, vec![0; 6])])
            .payload(1500)
            .build(),
    );
    for (seed, host) in [(1, Offloads::default()), (2, all_offloads())] {
        let mut random = Random::new(seed);
        let (mut rig, uplink) = Recording::rig(&PairConfig {
            uplink_offloads: host,
            ..config()
        });
        rig.features = linux()
            | Features::HOST_TSO4
            | Features::HOST_TSO6
            | Features::HOST_ECN
            | Features::HOST_USO;
        rig.apply(at_us(0));
        for number in 0..MESSAGES / 10 {
            let message = from_the_guest(&mut random, &templates);
            let len = u32::try_from(message.len()).unwrap();
            let first = u32::try_from(random.below(message.len())).unwrap();
            rig.tx.driver.post_tx(&message, &[first, len - first]);
            // The next good frame gets through, and is the last that does.
            rig.tx.post_tx(&numbered(number));
            rig.tx.kick();
            rig.settle(at_us(1));
            assert_eq!(rig.tx.driver.collect_all().len(), 2);
            let sent = uplink.take();
            assert_eq!(sent.last().map(|sent| &sent.frame), Some(&numbered(number)));
            rig.tx.driver.reset_alloc();
        }
        let stats = rig.tx_stats();
        let dropped = stats.ring.drops.total() + stats.dropped_misfit;
        assert_eq!(stats.frames + dropped, u64::from(MESSAGES / 10) * 2);
        assert!(dropped > 100, "{stats:?}");
        assert_eq!(stats.segmented > 100, host == Offloads::default());
    }
}
