//! Opening taps: by name and by descriptor, and each way in which it fails. Needs root.
#![cfg(feature = "daemon")]

#[path = "support/netns.rs"]
mod netns;

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;

use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use vhost_user_gro::sys::ifreq;
use vhost_user_gro::uplink::Uplink;
use vhost_user_gro::uplink::tap::{Persistence, Tap, TapError};

use self::netns::{in_namespace, ip};

const TAP: u16 = ifreq::IFF_TAP | ifreq::IFF_NO_PI;
const TUN: u16 = 0x0001;

fn open(name: &str, pairs: usize) -> Result<Tap, TapError> {
    Tap::open(name, pairs, Persistence::Unchanged)
}

fn tun() -> OwnedFd {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).open("/dev/net/tun");
    file.expect("/dev/net/tun is there").into()
}

fn attached(name: &str, flags: u16) -> OwnedFd {
    let fd = tun();
    ifreq::tun_set_iff(fd.as_fd(), name, flags).expect("the name is free");
    fd
}

/// Whether the interface exists in the namespace of this thread.
fn exists(interface: &str) -> bool {
    let output = Command::new("ip")
        .args(["link", "show", "dev", interface])
        .output()
        .expect("ip(8) is installed");
    output.status.success()
}

#[test]
fn a_tap_is_made_and_goes_with_the_daemon() {
    in_namespace("a_tap_is_made_and_goes_with_the_daemon", || {
        let mut tap = open("made", 1).unwrap();
        assert_eq!(tap.name(), "tap made");
        assert_eq!(tap.caps().queues, 1);
        let queues = tap.take_queues();
        drop(tap);
        assert!(exists("made"));
        drop(queues);
        assert!(!exists("made"));
    });
}

#[test]
fn a_persistent_tap_stays_until_it_is_made_temporary() {
    in_namespace("a_persistent_tap_stays_until_it_is_made_temporary", || {
        drop(Tap::open("kept", 1, Persistence::Persistent).unwrap());
        assert!(exists("kept"));
        drop(open("kept", 1).unwrap());
        assert!(exists("kept"));
        drop(Tap::open("kept", 1, Persistence::Temporary).unwrap());
        assert!(!exists("kept"));
    });
}

#[test]
fn several_queues_make_a_multi_queue_tap() {
    in_namespace("several_queues_make_a_multi_queue_tap", || {
        let mut tap = open("multi", 3).unwrap();
        assert_eq!(tap.caps().queues, 3);
        let queues = tap.take_queues();
        assert_eq!(queues.len(), 3);
        for queue in &queues {
            let iface = ifreq::tun_get_iff(queue.fd()).unwrap();
            assert_eq!(iface.name, "multi");
            assert_ne!(iface.flags & ifreq::IFF_MULTI_QUEUE, 0);
        }
    });
}

#[test]
fn the_queue_mode_of_an_existing_tap_is_found_out() {
    in_namespace("the_queue_mode_of_an_existing_tap_is_found_out", || {
        ip("tuntap add dev single mode tap");
        ip("tuntap add dev multi mode tap multi_queue");
        let err = open("single", 2).unwrap_err();
        assert!(matches!(&err, TapError::SingleQueue { name, pairs: 2 } if name == "single"));
        assert!(err.to_string().contains("single-queue"), "{err}");
        // The attempt left nothing attached, and one pair takes either mode.
        drop(open("single", 1).unwrap());
        drop(open("multi", 1).unwrap());
        drop(open("multi", 2).unwrap());
    });
}

#[test]
fn a_busy_tap_is_called_busy() {
    in_namespace("a_busy_tap_is_called_busy", || {
        let _first = open("busy", 1).unwrap();
        let err = open("busy", 1).unwrap_err();
        assert!(
            matches!(&err, TapError::Busy { name } if name == "busy"),
            "{err}"
        );
        // Asked for two pairs, its mode is what is wrong first.
        let err = open("busy", 2).unwrap_err();
        assert!(matches!(err, TapError::SingleQueue { .. }), "{err}");
    });
}

#[test]
fn another_kind_of_interface_is_no_tap() {
    in_namespace("another_kind_of_interface_is_no_tap", || {
        ip("tuntap add dev layer3 mode tun");
        for name in ["lo", "layer3"] {
            for pairs in [1, 2] {
                let err = open(name, pairs).unwrap_err();
                assert!(matches!(err, TapError::WrongKind { .. }), "{name}: {err}");
            }
        }
    });
}

#[test]
fn without_the_capability_the_error_names_it() {
    in_namespace("without_the_capability_the_error_names_it", || {
        let mut sets = capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::NET_ADMIN);
        set_capabilities(None, sets).unwrap();
        let err = open("denied", 1).unwrap_err();
        assert!(matches!(err, TapError::Permission { .. }), "{err}");
        assert!(err.to_string().contains("CAP_NET_ADMIN"), "{err}");
    });
}

#[test]
fn f36_header_size_of_an_earlier_owner_is_replaced() {
    in_namespace("f36_header_size_of_an_earlier_owner_is_replaced", || {
        let earlier = attached("old", TAP | ifreq::IFF_VNET_HDR);
        ifreq::tun_set_vnet_hdr_len(earlier.as_fd(), 10).unwrap();
        ifreq::tun_set_persist(earlier.as_fd(), true).unwrap();
        drop(earlier);
        let mut tap = open("old", 1).unwrap();
        let queues = tap.take_queues();
        assert_eq!(ifreq::tun_vnet_hdr_len(queues[0].fd()).unwrap(), 12);
        assert!(ifreq::tun_is_vnet_le(queues[0].fd()).unwrap());
    });
}

#[test]
fn descriptors_of_an_open_tap_are_taken_over() {
    in_namespace("descriptors_of_an_open_tap_are_taken_over", || {
        let flags = TAP | ifreq::IFF_VNET_HDR | ifreq::IFF_MULTI_QUEUE;
        let fds = vec![attached("given", flags), attached("given", flags)];
        let mut tap = Tap::from_fds(fds, 2).unwrap();
        assert_eq!(tap.name(), "tap given");
        let queues = tap.take_queues();
        assert_eq!(queues.len(), 2);
        let status = rustix::fs::fcntl_getfl(queues[1].fd()).unwrap();
        assert!(status.contains(rustix::fs::OFlags::NONBLOCK));
    });
}

#[test]
fn descriptors_of_something_else_are_refused() {
    in_namespace("descriptors_of_something_else_are_refused", || {
        let refused = |fd: OwnedFd| Tap::from_fds(vec![fd], 1).unwrap_err();
        let file = File::open("/dev/null").unwrap();
        assert!(matches!(refused(file.into()), TapError::NotATap { .. }));
        assert!(matches!(refused(tun()), TapError::NotAttached { .. }));
        let layer3 = attached("layer3", TUN | ifreq::IFF_NO_PI);
        assert!(matches!(refused(layer3), TapError::NotEthernet { .. }));
        let plain = attached("plain", TAP);
        assert!(matches!(refused(plain), TapError::NoVnetHdr { .. }));
    });
}

#[test]
fn a_tap_with_protocol_information_is_refused() {
    in_namespace("a_tap_with_protocol_information_is_refused", || {
        let with_info = ifreq::IFF_TAP | ifreq::IFF_VNET_HDR;
        for (tap, mode) in [("single", 0), ("multi", ifreq::IFF_MULTI_QUEUE)] {
            let err = Tap::from_fds(vec![attached(tap, with_info | mode)], 1).unwrap_err();
            assert!(
                matches!(&err, TapError::PacketInfo { name } if name == tap),
                "{err}"
            );
            assert!(err.to_string().contains("IFF_NO_PI"), "{err}");
        }
        // A queue that joins others gets their framing, whatever it asks for.
        let _first = attached("joined", with_info | ifreq::IFF_MULTI_QUEUE);
        for pairs in [1, 2] {
            let err = open("joined", pairs).unwrap_err();
            assert!(matches!(err, TapError::PacketInfo { .. }), "{err}");
        }
    });
}

#[test]
fn asking_for_the_framing_leaves_no_filter_behind() {
    in_namespace("asking_for_the_framing_leaves_no_filter_behind", || {
        let flags = ifreq::IFF_TAP | ifreq::IFF_VNET_HDR;
        let ask = |fd: &OwnedFd| ifreq::tun_has_packet_info(fd.as_fd()).unwrap();
        let fd = attached("info", flags);
        // The question may be asked again.
        assert_eq!([ask(&fd), ask(&fd)], [Some(true); 2]);
        // Without a filter the bit is set again.
        let iface = ifreq::tun_get_iff(fd.as_fd()).unwrap();
        assert_ne!(iface.flags & ifreq::IFF_NO_PI, 0);
        let fd = attached("plain", flags | ifreq::IFF_NO_PI);
        assert_eq!([ask(&fd), ask(&fd)], [Some(false); 2]);
    });
}

#[test]
fn a_detached_queue_is_attached_when_it_is_taken_over() {
    in_namespace("a_detached_queue_is_attached_when_it_is_taken_over", || {
        let flags = TAP | ifreq::IFF_VNET_HDR | ifreq::IFF_MULTI_QUEUE;
        let fd = attached("rested", flags);
        ifreq::tun_set_queue(fd.as_fd(), false).unwrap();
        let queues = Tap::from_fds(vec![fd], 1).unwrap().take_queues();
        let iface = ifreq::tun_get_iff(queues[0].fd()).unwrap();
        assert_eq!(iface.flags & ifreq::IFF_DETACH_QUEUE, 0);
    });
}

#[test]
fn the_number_of_descriptors_and_their_device_must_fit() {
    in_namespace(
        "the_number_of_descriptors_and_their_device_must_fit",
        || {
            let flags = TAP | ifreq::IFF_VNET_HDR | ifreq::IFF_MULTI_QUEUE;
            let err = Tap::from_fds(vec![attached("one", flags)], 2).unwrap_err();
            assert!(
                matches!(err, TapError::FdCount { fds: 1, pairs: 2 }),
                "{err}"
            );
            let mixed = vec![attached("one", flags), attached("two", flags)];
            let err = Tap::from_fds(mixed, 2).unwrap_err();
            assert!(matches!(err, TapError::MixedDevices { .. }), "{err}");
        },
    );
}
