//! What becomes of a frame: its length, its tags, its checksum, and whether it was merged.

use vhost_user_gro::uplink::af_packet::Mac;
use vhost_user_gro::uplink::af_xdp::{AfXdp, AfXdpConfig, Mode};
use vhost_user_gro::uplink::{FramePool, Offloads, SendError, Uplink};
use vhost_user_gro::wire::VnetHdr;
use vhost_user_gro::wire::vnet_hdr::F_NEEDS_CSUM;

use crate::host_frames::{LARGEST, MSS, gso, plain, send, sum16};
use crate::netns::{in_namespace, ip};
use crate::rig::{Cable, add_pair, attach_wire, config, follow, in_each_mode, number, numbered};

#[test]
fn f60_frames_of_every_size_arrive_whole_or_are_counted() {
    in_each_mode(
        "f60_frames_of_every_size_arrive_whole_or_are_counted",
        |mode| {
            // In its driver a veth takes no more.
            let largest = if mode == Mode::Native { 3400 } else { 3802 };
            let mut cable = Cable::new(largest, config(mode));
            for len in [60, 1514, 2048, largest + 14] {
                let (_, frame) = plain(len);
                cable.put(&frame);
                assert!(cable.receive(1)[0].frame.as_ref() == frame, "{len} bytes");
                send(cable.queue.as_mut(), VnetHdr::default(), &frame).unwrap();
                assert!(cable.arrived(1) == [frame], "{len} bytes");
            }
            let (vnet, frame) = plain(largest + 15);
            let refused = send(cable.queue.as_mut(), vnet, &frame);
            assert!(matches!(refused, Err(SendError::Refused(_))), "{refused:?}");
            if mode == Mode::Generic {
                ip("link set dev uplink mtu 9000");
                ip("link set dev wire mtu 9000");
                follow(cable.queue.as_mut(), true);
                cable.put(&plain(9014).1);
                cable.put(&numbered(1));
                cable.receive(1);
                assert_eq!(cable.queue.stats().rx_too_long, 1);
                let refused = send(cable.queue.as_mut(), vnet, &frame);
                assert!(matches!(refused, Err(SendError::Refused(_))), "{refused:?}");
            }
        },
    );
}

#[test]
fn f62_tags_in_a_frame_stay_there() {
    in_each_mode("f62_tags_in_a_frame_stay_there", |mode| {
        let mut cable = Cable::new(1500, config(mode));
        let tag = |protocol: u16, control: u16| {
            let [a, b] = protocol.to_be_bytes();
            let [c, d] = control.to_be_bytes();
            vec![a, b, c, d]
        };
        let tags = [
            vec![],
            tag(0x8100, 0),
            tag(0x8100, 1),
            tag(0x8100, 4095),
            tag(0x8100, 5 << 13 | 100),
            tag(0x88a8, 7),
            [tag(0x8100, 3), tag(0x8100, 4)].concat(),
            [tag(0x88a8, 3), tag(0x8100, 0)].concat(),
        ];
        // As long as may be: of tags, a packet socket allows for none, and a veth for one.
        let tagged = |len: usize, tags: &[u8]| {
            let (_, untagged) = plain(len - tags.len());
            [&untagged[..12], tags, &untagged[12..]].concat()
        };
        for tags in &tags {
            let frame = tagged(1514, tags);
            cable.put(&frame);
            let frames = cable.receive(1);
            assert!(frames[0].frame.as_ref() == frame, "{tags:02x?}");
            let frame = tagged(1514 + tags.len().min(4), tags);
            send(cable.queue.as_mut(), VnetHdr::default(), &frame).unwrap();
            assert!(cable.arrived(1) == [frame], "{tags:02x?}");
        }
    });
}

#[test]
fn f63_frames_merged_by_a_sender_on_this_host_are_cut_by_the_kernel() {
    let test = "f63_frames_merged_by_a_sender_on_this_host_are_cut_by_the_kernel";
    in_namespace(test, || {
        let mut cable = Cable::new(1500, config(Mode::Native));
        let (vnet, packet) = gso(54 + 10 * usize::from(MSS));
        send(cable.wire.as_mut(), vnet, &packet).unwrap();
        let frames = cable.receive(10);
        let payload: Vec<_> = frames
            .iter()
            .flat_map(|rx| &rx.frame.as_ref()[54..])
            .collect();
        assert!(payload.into_iter().eq(&packet[54..]), "the payload differs");
        let stats = cable.queue.stats();
        assert_eq!((stats.rx_too_long, stats.rx_unfinished), (0, 10));
    });
}

#[test]
fn f63_merged_frames_that_come_all_the_same_are_dropped_and_counted() {
    let test = "f63_merged_frames_that_come_all_the_same_are_dropped_and_counted";
    in_namespace(test, || {
        let mut cable = Cable::new(1500, config(Mode::Generic));
        let (vnet, packet) = gso(LARGEST);
        send(cable.wire.as_mut(), vnet, &packet).unwrap();
        cable.put(&numbered(1));
        assert_eq!(number(cable.receive(1)[0].frame.as_ref()), 1);
        let stats = cable.queue.stats();
        assert_eq!((stats.rx_too_long, stats.rx_ring_full), (1, 0));
    });
}

#[test]
fn f43_a_checksum_that_a_sender_on_this_host_left_is_told_to_the_guest() {
    let test = "f43_a_checksum_that_a_sender_on_this_host_left_is_told_to_the_guest";
    in_each_mode(test, |mode| {
        for unfinished in [None, Some(true), Some(false)] {
            let config = AfXdpConfig {
                unfinished,
                ..config(mode)
            };
            let mut cable = Cable::new(1500, config);
            let (vnet, left) = plain(1514);
            let mut finished = left.clone();
            finish(&mut finished);
            send(cable.wire.as_mut(), vnet, &left).unwrap();
            cable.put(&finished);
            let frames = cable.receive(2);
            assert!(frames[0].frame.as_ref() == left, "the first frame differs");
            assert!(
                frames[1].frame.as_ref() == finished,
                "the second one differs"
            );
            let told = frames[0].meta.vnet;
            if unfinished == Some(false) {
                assert_eq!(told, VnetHdr::default());
            } else {
                assert_eq!(told.flags, F_NEEDS_CSUM);
                assert_eq!((told.csum_start, told.csum_offset), (34, 16));
            }
            assert_eq!(frames[1].meta.vnet, VnetHdr::default());
            assert_eq!(cable.queue.stats().rx_unfinished, 1);
            ip("link delete dev uplink");
        }
    });
}

#[test]
fn f43_checksums_of_what_the_guest_sends_are_finished() {
    in_each_mode(
        "f43_checksums_of_what_the_guest_sends_are_finished",
        |mode| {
            add_pair(1500);
            let mut uplink = AfXdp::open("uplink", 1, config(mode)).unwrap();
            assert_eq!(uplink.caps().tx, Offloads::default());
            let mut cable = Cable {
                queue: uplink.take_queues().remove(0),
                wire: attach_wire(),
                pool: FramePool::new(64),
            };
            let (vnet, mut frame) = plain(1514);
            send(cable.queue.as_mut(), vnet, &frame).unwrap();
            finish(&mut frame);
            assert!(cable.arrived(1) == [frame], "the frame differs");
            // Nobody was told that it would be cut.
            let (vnet, frame) = gso(LARGEST);
            let refused = send(cable.queue.as_mut(), vnet, &frame);
            assert!(matches!(refused, Err(SendError::Refused(_))), "{refused:?}");
        },
    );
}

/// Finishes the checksum of a frame of `plain`.
fn finish(frame: &mut [u8]) {
    let sum = !sum16(&frame[34..]);
    frame[50..52].copy_from_slice(&sum.to_be_bytes());
}

#[test]
fn what_this_queue_sends_is_not_received() {
    in_each_mode("what_this_queue_sends_is_not_received", |mode| {
        let mut cable = Cable::new(1500, config(mode));
        let (vnet, frame) = plain(100);
        send(cable.queue.as_mut(), vnet, &frame).unwrap();
        cable.arrived(1);
        cable.put(&numbered(1));
        assert_eq!(number(cable.receive(1)[0].frame.as_ref()), 1);
    });
}

#[test]
fn only_the_guests_addresses_and_groups_are_taken_if_they_are_known() {
    let test = "only_the_guests_addresses_and_groups_are_taken_if_they_are_known";
    in_each_mode(test, |mode| {
        let macs = vec![[0x02, 0, 0, 0, 0, 2], [0x02, 0x80, 0, 0, 0xff, 9]];
        let mut cable = Cable::new(
            1500,
            AfXdpConfig {
                macs: macs.clone(),
                ..config(mode)
            },
        );
        let to = |mac: Mac| {
            let (_, mut frame) = plain(100);
            frame[..6].copy_from_slice(&mac);
            frame
        };
        let wanted = [
            macs[0],
            [0xff; 6],
            macs[1],
            [1, 0, 0x5e, 0, 0, 1],
            [0x33, 0x33, 0, 0, 0, 1],
        ];
        let foreign = [
            [0x02, 0, 0, 0, 0, 3],
            [0x02, 0, 0, 0, 0xff, 9],
            [0x12, 0, 0, 0, 0, 2],
        ];
        for mac in foreign.into_iter().chain(wanted).chain(foreign) {
            cable.put(&to(mac));
        }
        // Behind all of them.
        cable.put(&to(wanted[0]));
        let frames = cable.receive(wanted.len() + 1);
        let got: Vec<_> = frames.iter().map(|rx| &rx.frame.as_ref()[..6]).collect();
        assert_eq!(got[..wanted.len()], wanted);
    });
}
