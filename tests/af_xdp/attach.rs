//! What cannot be attached to and why, and a program that is never left behind.

use std::process::{Command, Stdio};

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use vhost_user_gro::uplink::FramePool;
use vhost_user_gro::uplink::af_xdp::{AfXdp, AfXdpError, Mode};

use crate::netns::{in_namespace, ip};
use crate::rig::{
    Cable, add_pair, add_pair_of_queues, attach, attach_wire, config, has_program, in_each_mode,
    numbered, unbound, wait_for_program,
};

#[test]
fn what_cannot_be_attached_to_is_named() {
    in_namespace("what_cannot_be_attached_to_is_named", || {
        let error = |name, pairs| AfXdp::open(name, pairs, config(Mode::Auto)).err();
        assert!(matches!(
            error("missing", 1),
            Some(AfXdpError::NoInterface { .. })
        ));
        assert!(matches!(
            error("lo", 1),
            Some(AfXdpError::NotEthernet { .. })
        ));
        assert!(matches!(error("a/b", 1), Some(AfXdpError::Name { .. })));
        add_pair(1500);
        assert!(matches!(
            error("uplink", 2),
            Some(AfXdpError::Queues {
                found: 1,
                wanted: 2,
                ..
            })
        ));
        let first = attach(config(Mode::Native));
        let other = error("uplink", 1);
        assert!(
            matches!(other, Some(AfXdpError::OtherProgram { .. })),
            "{other:?}"
        );
        drop(first);
        // It can be left in either mode, and attached to at once.
        drop(attach(config(Mode::Generic)));
        drop(attach(config(Mode::Auto)));
        ip("link set dev uplink mtu 9000");
        assert!(matches!(
            error("uplink", 1),
            Some(AfXdpError::Mtu { mtu: 9000, .. })
        ));
        ip("link delete dev uplink");
        add_pair_of_queues(2);
        assert!(matches!(
            error("uplink", 1),
            Some(AfXdpError::Queues {
                found: 2,
                wanted: 1,
                ..
            })
        ));
        wait_for_program(false);
    });
}

#[test]
fn f63_an_interface_that_merges_before_the_program_is_refused() {
    let test = "f63_an_interface_that_merges_before_the_program_is_refused";
    in_namespace(test, || {
        // Bridges are born so.
        ip("link add uplink type bridge");
        let error = AfXdp::open("uplink", 1, config(Mode::Auto)).err();
        assert!(
            matches!(error, Some(AfXdpError::Merges { .. })),
            "{error:?}"
        );
        wait_for_program(false);
    });
}

#[test]
fn a_driver_that_cannot_is_told_from_one_that_does_not_want_to() {
    let test = "a_driver_that_cannot_is_told_from_one_that_does_not_want_to";
    in_namespace(test, || {
        // In its driver a veth takes a program only if its peer sends no longer frames.
        add_pair(1500);
        ip("link set dev wire mtu 9000");
        let error = AfXdp::open("uplink", 1, config(Mode::Native)).err();
        assert!(
            matches!(error, Some(AfXdpError::NotNative { .. })),
            "{error:?}"
        );
        let mut cable = Cable {
            queue: attach(config(Mode::Auto)),
            wire: attach_wire(),
            pool: FramePool::new(4),
        };
        cable.put(&numbered(1));
        cable.receive(1);
    });
}

#[test]
fn a_queue_that_has_another_socket_is_refused() {
    in_namespace("a_queue_that_has_another_socket_is_refused", || {
        add_pair(1500);
        let other = unbound();
        let fd = attach_wire();
        let index = rustix::net::netdevice::name_to_index(fd.fd(), "uplink").unwrap();
        other.bind(index, 0, true).unwrap();
        let error = AfXdp::open("uplink", 1, config(Mode::Auto)).err();
        assert!(
            matches!(error, Some(AfXdpError::QueueBusy { queue: 0, .. })),
            "{error:?}"
        );
        wait_for_program(false);
    });
}

#[test]
fn without_privilege_it_says_which_is_missing() {
    in_namespace("without_privilege_it_says_which_is_missing", || {
        add_pair(1500);
        let all = capabilities(None).expect("they can be read").permitted;
        let missing = |missing: CapabilitySet| {
            let effective = all & !missing;
            let sets = CapabilitySets {
                effective,
                permitted: all,
                inheritable: CapabilitySet::empty(),
            };
            set_capabilities(None, sets).expect("fewer are allowed");
            let error = AfXdp::open("uplink", 1, config(Mode::Auto)).err();
            match error {
                Some(AfXdpError::Permission { capability, .. }) => capability,
                error => panic!("{error:?}"),
            }
        };
        assert_eq!(missing(CapabilitySet::NET_RAW), "CAP_NET_RAW");
        let both = "CAP_BPF and CAP_NET_ADMIN";
        assert_eq!(missing(CapabilitySet::BPF | CapabilitySet::SYS_ADMIN), both);
    });
}

#[test]
fn the_program_goes_with_the_uplink() {
    in_each_mode("the_program_goes_with_the_uplink", |mode| {
        add_pair(1500);
        assert!(!has_program());
        let queue = attach(config(mode));
        assert!(has_program());
        drop(queue);
        wait_for_program(false);
    });
}

#[test]
fn the_program_goes_with_the_process_that_is_killed() {
    in_each_mode("the_program_goes_with_the_process_that_is_killed", |mode| {
        add_pair(1500);
        let folder = tempfile::tempdir().expect("there is a folder for such");
        let mode = if mode == Mode::Native {
            "native"
        } else {
            "generic"
        };
        let mut daemon = Command::new(env!("CARGO_BIN_EXE_vhost-user-gro"))
            .args(["--af-xdp", "uplink", "--af-xdp-mode", mode, "--socket-path"])
            .arg(folder.path().join("socket"))
            .stderr(Stdio::null())
            .spawn()
            .expect("the daemon starts");
        wait_for_program(true);
        daemon.kill().expect("it runs");
        daemon.wait().expect("it was killed");
        wait_for_program(false);
    });
}
