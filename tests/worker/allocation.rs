//! Steady traffic allocates nothing.

use vhost_user_gro::device::Features;
use vhost_user_gro::uplink::Offloads;
use vhost_user_gro::worker::PairConfig;

use crate::packet::{A, ACK, B, Built, PSH, tcp4};
use crate::rig::{BUFFER, Rig, at_us, config, linux, segment};

/// Polls before measuring, after which every list has its size.
const WARM_UP: u64 = 4;

/// Runs `rounds` of the same frames and gives the allocations of all turns in them.
fn allocations(rig: &mut Rig, frames: &[Built], rounds: u64) -> u64 {
    let mut total = 0;
    for round in 0..WARM_UP + rounds {
        rig.inject_all(frames);
        let now = at_us(round * 1000);
        let measured = allocation_counter::measure(|| {
            rig.rest(now);
        });
        if round >= WARM_UP {
            total += measured.count_total;
        }
        let (packets, chains) = rig.rx.collect();
        assert!(!packets.is_empty());
        rig.rx.give_back(&chains);
        rig.rx.kick();
    }
    total
}

#[test]
fn the_way_to_the_guest_allocates_nothing() {
    let merged: Vec<_> = (0..40).map(|nth| segment(nth).build()).collect();
    let single: Vec<_> = (0..40)
        .map(|nth| segment(nth).flags(PSH | ACK).build())
        .collect();
    for frames in [&merged, &single] {
        let mut rig = Rig::new(&config());
        assert_eq!(allocations(&mut rig, frames, 50), 0);
    }
}

#[test]
fn cutting_and_waiting_for_buffers_allocates_nothing() {
    // Each round has a super-frame of six segments for a guest without mergeable buffers; two of
    // them wait for the buffers of the next round.
    let frames: Vec<_> = (0..6).map(|nth| segment(nth).build()).collect();
    let mut rig = Rig::unstarted(&config(), 8);
    rig.features = linux().without(Features::MRG_RXBUF);
    rig.rx.post_rx(6, BUFFER);
    rig.apply(at_us(0));
    rig.inject_all(&frames[..2]);
    assert_eq!(allocations(&mut rig, &frames, 50), 0);
    assert!(rig.rx_stats().resegmented >= 50 && rig.rx_stats().buffer_waits >= 50);
}

/// Rounds of one frame posted again and again, in buffers of these lengths; each comes out as so
/// many.
fn from_the_guest(rig: &mut Rig, message: &[u8], lens: &[u32], sent: usize) {
    const FRAMES: usize = 16;
    let parts = rig.tx.driver.tx_parts(message, lens);
    for round in 0..54 {
        for _ in 0..FRAMES {
            rig.tx.driver.post(&parts).expect("descriptors are left");
        }
        rig.tx.kick();
        let measured = allocation_counter::measure(|| {
            rig.rest(at_us(round));
        });
        assert_eq!(rig.tx.driver.collect_all().len(), FRAMES);
        assert_eq!(rig.sent().len(), sent * FRAMES);
        if round >= WARM_UP {
            assert_eq!(measured.count_total, 0);
        }
    }
}

#[test]
fn the_way_from_the_guest_allocates_nothing() {
    let mut rig = Rig::new(&config());
    from_the_guest(&mut rig, &[0; 1012], &[12, 500, 500], 1);
}

#[test]
fn cutting_what_the_guest_sends_allocates_nothing() {
    let mut rig = Rig::unstarted(
        &PairConfig {
            uplink_offloads: Offloads::default(),
            ..config()
        },
        256,
    );
    rig.features = linux() | Features::HOST_TSO4;
    rig.apply(at_us(0));
    let packet = tcp4(A, B).payload(5000).partial_csum();
    let built = packet.host_gso_size(Some(1000)).build();
    let message = [&built.meta.vnet.encode()[..], &built.bytes].concat();
    from_the_guest(&mut rig, &message, &[12, 54, 5000], 5);
}
