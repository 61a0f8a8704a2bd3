//! What the engine says about itself: counters, its list, and settings that take effect.

use std::cell::Cell;
use std::rc::Rc;

use super::{ALL, Rig};
use crate::gro::{FlushReason, GroConfig, GroEngine, GroTypes};
use crate::time::Instant;
use crate::wire::RxMeta;
use crate::wire::sample::Sample;
use crate::wire::vnet_hdr::VnetHdr;

#[test]
fn every_frame_and_byte_is_counted_once() {
    let mut rig = Rig::all();
    let [first, second, third, last] = Sample::tcp4().stream(4).try_into().unwrap();
    // Shorter, so it closes the packet and goes the long way.
    let last = last.payload_len(7);
    for frame in [&first, &second, &third, &last] {
        rig.send(frame);
    }
    let mut reset = Sample::tcp6();
    reset.flags |= 4;
    rig.send(&reset);
    rig.send_as(vec![0xff; 60], VnetHdr::default());
    let lens = [&first, &second, &third, &last, &reset].map(|sample| sample.bytes().len() as u64);
    let stats = *rig.engine.stats();
    assert_eq!(stats.frames, 6);
    assert_eq!(stats.bytes, lens.iter().sum::<u64>() + 60);
    assert_eq!((stats.held, stats.merged), (1, 3));
    assert_eq!((stats.normal, stats.bypassed), (2, 1));
    assert_eq!((stats.super_frames, stats.super_frame_segs), (1, 4));
    assert_eq!(stats.completed(FlushReason::Close), 1);
}

#[test]
fn the_list_shows_its_first_packet_until_that_is_released() {
    let mut rig = Rig::all();
    assert!(rig.engine.front().is_none());
    let frames = [vec![1; 60], vec![2; 60]];
    for frame in &frames {
        rig.send_as(frame.clone(), VnetHdr::default());
    }
    for frame in &frames {
        for _ in 0..2 {
            let front = rig.engine.front().unwrap();
            assert_eq!(front.slices().collect::<Vec<_>>().concat(), *frame);
        }
        rig.engine.release_front();
    }
    assert!(rig.engine.front().is_none());
    rig.engine.release_front();
    assert_eq!(rig.engine.ready_len(), 0);
}

#[test]
fn a_packet_may_be_taken_out_whole() {
    let mut rig = Rig::all();
    for frame in Sample::tcp4().stream(3) {
        rig.send(&frame);
    }
    rig.engine.flush_all(FlushReason::PollEnd);
    let packet = rig.engine.pop().unwrap();
    assert_eq!(packet.segs(), 3);
    assert!(rig.engine.pop().is_none());
    // What was taken out is not used again.
    rig.send_as(vec![0xff; 60], VnetHdr::default());
    assert_eq!(packet.slices().count(), 3);
    assert_eq!(rig.drain()[0].bytes, [0xff; 60]);
}

#[test]
fn a_new_setting_completes_what_is_held_and_then_rules() {
    let mut rig = Rig::all();
    let frames = Sample::tcp4().stream(4);
    rig.send(&frames[0]);
    let config = GroConfig {
        enabled: false,
        ..GroConfig::default()
    };
    rig.engine.set_config(config);
    assert_eq!((rig.engine.held(), rig.engine.ready_len()), (0, 1));
    assert!(!rig.engine.config().enabled);
    rig.send(&frames[1]);
    assert_eq!((rig.engine.held(), rig.engine.ready_len()), (0, 2));
    rig.engine.set_config(GroConfig::default());
    rig.send(&frames[2]);
    assert_eq!((rig.engine.held(), rig.engine.ready_len()), (1, 2));
    rig.engine.set_types(GroTypes { tcp4: false, ..ALL });
    rig.send(&frames[3]);
    assert_eq!((rig.engine.held(), rig.engine.ready_len()), (0, 4));
}

#[test]
fn more_packets_than_at_first_are_no_matter() {
    let mut rig = Rig::all();
    let frames: Vec<Vec<u8>> = (0..1000_u32)
        .map(|n| [[0; 60].as_slice(), &n.to_le_bytes()].concat())
        .collect();
    for frame in &frames {
        rig.send_as(frame.clone(), VnetHdr::default());
    }
    assert_eq!(rig.engine.ready_len(), 1000);
    let delivered: Vec<_> = rig.drain().into_iter().map(|packet| packet.bytes).collect();
    assert_eq!(delivered, frames);
}

/// A frame that says when it is let go of.
struct Lent {
    bytes: Vec<u8>,
    out: Rc<Cell<usize>>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsMut<[u8]> for Lent {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.out.set(self.out.get() - 1);
    }
}

#[test]
fn a_released_packet_lets_go_of_all_its_frames_at_once() {
    let mut engine = GroEngine::new(GroConfig::default());
    engine.set_types(ALL);
    let out = Rc::new(Cell::new(0));
    for frame in Sample::tcp4().stream(5) {
        out.set(out.get() + 1);
        let lent = Lent {
            bytes: frame.bytes(),
            out: Rc::clone(&out),
        };
        engine.receive(Instant::ZERO, lent, &RxMeta::default());
    }
    engine.flush_all(FlushReason::PollEnd);
    assert_eq!((engine.ready_len(), out.get()), (1, 5));
    engine.release_front();
    assert_eq!((engine.ready_len(), out.get()), (0, 0));
}
