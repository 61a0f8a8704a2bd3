//! Changes of the guest's memory.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::fs::ftruncate;
use vm_memory::{GuestAddress, GuestMemoryBackend};

use crate::front_end::{MEMORY, Req, USER_BASE, event, memory, one_region, region, state, table};
use crate::served::Served;

fn regions(served: &Served) -> usize {
    served.pairs[0].now().memory.unwrap().num_regions()
}

#[test]
fn regions_come_and_go_under_a_served_ring() {
    let served = Served::listening(1);
    let front = served.connect();
    let base = memory();
    front.prepare(&base);
    let _events = front.start_ring(0, 0);
    let epoch = served.pairs[0].rx().epoch;
    let extra = memory();
    for _ in 0..300 {
        front.tell(
            Req::ADD_MEM_REG,
            &one_region(region(MEMORY)),
            &[extra.as_fd()],
        );
        assert_eq!(regions(&served), 2);
        front.tell(Req::REM_MEM_REG, &one_region(region(MEMORY)), &[]);
        assert_eq!(regions(&served), 1);
        front.set_memory(&base);
    }
    assert_eq!(
        served.pairs[0].rx().epoch,
        epoch,
        "the ring was in service all the time"
    );
}

#[test]
fn ring_follows_the_region_it_lies_in() {
    let served = Served::listening(1);
    let front = served.connect();
    let base = memory();
    front.prepare(&base);
    let _events = front.start_ring(0, 40);
    let epoch = served.pairs[0].rx().epoch;
    served.pairs[0].consume(2);

    let other = memory();
    front.tell(
        Req::ADD_MEM_REG,
        &one_region(region(MEMORY)),
        &[other.as_fd()],
    );
    front.tell(Req::REM_MEM_REG, &one_region(region(0)), &[base.as_fd()]);
    let setup = served.pairs[0].now();
    assert!(
        setup.rx.is_none() && setup.memory.is_none(),
        "nothing to serve it from"
    );

    front.tell(Req::ADD_MEM_REG, &one_region(region(0)), &[base.as_fd()]);
    let ring = served.pairs[0].rx();
    assert_eq!(ring.next_avail, 42, "goes on where it stood");
    assert!(ring.epoch > epoch);
}

#[test]
fn former_memory_is_unmapped_when_it_was_replaced() {
    let served = Served::listening(1);
    let front = served.connect();
    front.prepare(&memory());
    let _events = front.start_ring(0, 0);
    let former = Arc::downgrade(&served.pairs[0].now().memory.unwrap());
    front.set_memory(&memory());
    served.pairs[0].forget_former();
    assert!(former.upgrade().is_none());
    assert!(served.pairs[0].now().memory.is_some());
}

#[test]
fn region_may_be_named_once_for_each_pair() {
    let served = Served::listening(2);
    let front = served.connect();
    front.prepare(&memory());
    let _events = front.start_ring(0, 0);
    let extra = memory();
    for expected in [2, 1] {
        for _ in 0..2 {
            match expected {
                2 => front.tell(
                    Req::ADD_MEM_REG,
                    &one_region(region(MEMORY)),
                    &[extra.as_fd()],
                ),
                _ => front.tell(Req::REM_MEM_REG, &one_region(region(MEMORY)), &[]),
            }
            assert_eq!(regions(&served), expected);
        }
    }
}

#[test]
fn thirty_two_regions_work() {
    let served = Served::listening(1);
    let front = served.connect();
    front.prepare(&memory());
    let file = memory();
    let regions: Vec<_> = (0..32).map(|index| region(index * MEMORY)).collect();
    let fds: Vec<BorrowedFd<'_>> = (0..32).map(|_| file.as_fd()).collect();
    front.tell(Req::SET_MEM_TABLE, &table(&regions), &fds);
    let _events = front.start_ring(0, 0);
    let memory = served.pairs[0].now().memory.unwrap();
    assert!(memory.address_in_range(GuestAddress(32 * MEMORY - 1)));
}

#[test]
fn region_beyond_its_file_is_refused() {
    let served = Served::listening(1);
    let front = served.connect();
    front.negotiate();
    let short = memory();
    ftruncate(&short, MEMORY / 2).unwrap();
    front.say(Req::SET_MEM_TABLE, &table(&[region(0)]), &[short.as_fd()]);
    front.expect_closed();

    let front = served.connect();
    front.prepare(&memory());
    front.say(
        Req::ADD_MEM_REG,
        &one_region(region(MEMORY)),
        &[short.as_fd()],
    );
    front.expect_closed();
}

#[test]
fn ring_over_the_end_of_memory_is_not_served() {
    let served = Served::listening(1);
    let front = served.connect();
    front.prepare(&memory());
    front.tell(Req::SET_VRING_NUM, &state(0, 1024), &[]);
    let end = USER_BASE + MEMORY;
    let payload: Vec<u8> = [0, end - 0x1000, USER_BASE, USER_BASE + 0x4000, 0]
        .iter()
        .flat_map(|word: &u64| word.to_ne_bytes())
        .collect();
    front.tell(Req::SET_VRING_ADDR, &payload, &[]);
    front.tell(
        Req::SET_VRING_KICK,
        &0_u64.to_ne_bytes(),
        &[event().as_fd()],
    );
    assert!(served.pairs[0].now().rx.is_none());
}
