//! What a trace says of the packets that pass.

use std::io::Write;
use std::sync::{Arc, Mutex};

use pcap_parser::traits::PcapNGPacketBlock;
use pcap_parser::traits::PcapReaderIterator;
use pcap_parser::{Block, OptionCode, PcapBlockOwned, PcapError, PcapNGReader};
use vhost_user_gro::worker::{Trace, TraceStats};

use crate::rig::{Rig, at_us, config, numbered, segment};

/// A file that the test reads.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A packet of a trace: whether it came from the guest, its bytes, its comment.
type Traced = (bool, Vec<u8>, String);

fn read(capture: &[u8]) -> Vec<Traced> {
    let mut reader = PcapNGReader::new(1 << 20, capture).expect("a capture");
    let mut packets = Vec::new();
    loop {
        let offset = match reader.next() {
            Ok((offset, PcapBlockOwned::NG(Block::EnhancedPacket(packet)))) => {
                let bytes = &packet.packet_data()[..packet.caplen as usize];
                let option = |code| packet.options.iter().find(|option| option.code == code);
                let flags = option(OptionCode(2)).expect("a direction").value()[0];
                let comment =
                    option(OptionCode::Comment).map(|option| option.as_bytes().unwrap().to_vec());
                let comment = String::from_utf8(comment.unwrap_or_default()).unwrap();
                packets.push((flags == 2, bytes.to_vec(), comment));
                offset
            }
            Ok((offset, _)) => offset,
            Err(PcapError::Eof) => return packets,
            Err(PcapError::Incomplete(_)) => {
                reader.refill().expect("it is in memory");
                continue;
            }
            Err(error) => panic!("{error:?}"),
        };
        reader.consume(offset);
    }
}

/// What was traced of what happens in `scene`.
fn traced(scene: impl FnOnce(&mut Rig)) -> Vec<Traced> {
    let file = Shared::default();
    let (trace, mut tracers) = Trace::start(file.clone(), 1).unwrap();
    let mut rig = Rig::new(&config());
    rig.pair.set_tracer(tracers.pop().unwrap());
    scene(&mut rig);
    drop(rig);
    trace.finish();
    let bytes = file.0.lock().unwrap();
    read(&bytes)
}

#[test]
fn the_guests_view_is_traced_merged() {
    let mut got = Vec::new();
    let packets = traced(|rig| {
        for nth in 0..5 {
            rig.inject(&segment(nth).build());
        }
        rig.tx.post_tx(&numbered(9));
        rig.tx.kick();
        rig.rest(at_us(1));
        got = rig.rx.packets();
        let expected = TraceStats {
            packets: 2,
            lost: 0,
        };
        assert_eq!(rig.pair.stats().trace, expected);
    });
    assert_eq!(got.len(), 1);
    let (from_guest, to_guest): (Vec<_>, Vec<_>) =
        packets.into_iter().partition(|(is_sent, ..)| *is_sent);
    assert_eq!(to_guest[0].1, got[0].frame);
    assert!(to_guest[0].2.contains("segments 5"), "{}", to_guest[0].2);
    assert_eq!(from_guest, [(true, numbered(9), String::new())]);
}

#[test]
fn what_the_guest_does_not_get_is_not_in_the_trace() {
    let packets = traced(|rig| {
        rig.rx.setup.enabled = false;
        rig.apply(at_us(1));
        rig.inject(&segment(0).build());
        rig.rest(at_us(2));
    });
    assert!(packets.is_empty());
}
