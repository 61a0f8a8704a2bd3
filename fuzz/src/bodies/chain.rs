//! Descriptor chains over a small guest memory, through the receive and the transmit queue, against
//! a walker that knows the specification only.
//!
//! Input: flags (byte), ring size (byte, power of two), then [`Step`]s until the end. Chains may lie
//! anywhere, overlap the ring and each other, and change at any time between two calls.

use std::rc::Rc;
use std::sync::Arc;

use vhost_user_gro::device::{
    Features, Fill, Pieces, QueueFault, RingConfig, RxQueue, SplitRing, Tx, TxDrop, TxQueue,
};
use vhost_user_gro::sys::GuestMap;
use vhost_user_gro::wire::VnetHdr;
use vhost_user_gro::wire::vnet_hdr::VNET_HDR_LEN;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use super::input::Input;

/// Two regions without a gap, a hole, one more, and that of the used ring.
const REGIONS: [(u64, usize); 4] = [
    (0, 0x2000),
    (0x2000, 0x2000),
    (0x5000, 0x1000),
    (USED, 0x1000),
];
const USED: u64 = 0x10_0000;
const AVAIL: u64 = 0x800;
/// Most buffers of a chain, as `device::chain` documents it.
const CHAIN_MAX: usize = 1024;
/// Steps of one input.
const MAX_STEPS: usize = 200;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (Some(flags), Some(size)) = (input.byte(), input.byte()) else {
        return;
    };
    let has = |bit: u8| flags & 1 << bit != 0;
    let mut features = Features::VERSION_1 | Features::EVENT_IDX;
    if has(0) {
        features = features | Features::MRG_RXBUF;
    }
    if has(1) {
        features = features | Features::INDIRECT_DESC;
    }
    let guest = Guest::new(1 << (size % 7), features);
    let mut world = World {
        queue: if has(2) {
            Queue::Tx(TxQueue::new(guest.ring(), features, 7))
        } else {
            Queue::Rx(RxQueue::new(guest.ring(), features))
        },
        avail_idx: 0,
        next: 0,
        seen: 0,
        short: None,
        guest,
    };
    for _ in 0..MAX_STEPS {
        let Some(step) = Step::decode(&mut input) else {
            break;
        };
        if world.step(step).is_err() {
            // A broken ring is not served any more.
            return;
        }
    }
    world.check_used();
}

/// What guest or device does next, by number.
#[derive(Clone, Debug)]
enum Step {
    /// 0: the guest writes a descriptor.
    Descriptor(u16, Descriptor),
    /// 1: it makes a chain available.
    Post(u16),
    /// 2: it moves the available index.
    AvailIndex(u16),
    /// 3: it writes bytes anywhere, an indirect table for example.
    Write(u16, Vec<u8>),
    /// 4: the device has a packet of this many bytes to fill in, or takes a frame.
    Serve(u16),
    /// 5: the device shows what it used.
    Publish,
}

impl Step {
    fn decode(input: &mut Input<'_>) -> Option<Self> {
        Some(match input.byte()? % 6 {
            0 => Self::Descriptor(input.word()?, Descriptor::read(input)?),
            1 => Self::Post(input.word()?),
            2 => Self::AvailIndex(input.word()?),
            3 => {
                let at = input.word()?;
                let len = input.byte()?;
                Self::Write(at, input.take(len.into()).to_vec())
            }
            4 => Self::Serve(input.word()?),
            _ => Self::Publish,
        })
    }

    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Descriptor(index, descriptor) => {
                out.push(0);
                out.extend(index.to_le_bytes());
                out.extend(descriptor.encode());
            }
            Self::Post(head) => {
                out.push(1);
                out.extend(head.to_le_bytes());
            }
            Self::AvailIndex(idx) => {
                out.push(2);
                out.extend(idx.to_le_bytes());
            }
            Self::Write(at, bytes) => {
                out.push(3);
                out.extend(at.to_le_bytes());
                out.push(u8::try_from(bytes.len()).unwrap());
                out.extend(bytes);
            }
            Self::Serve(len) => {
                out.push(4);
                out.extend(len.to_le_bytes());
            }
            Self::Publish => out.push(5),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Descriptor {
    addr: u64,
    len: u32,
    flags: u16,
    next: u16,
}

impl Descriptor {
    fn read(input: &mut Input<'_>) -> Option<Self> {
        Some(Self {
            addr: u64::from(input.long()?) | u64::from(input.long()?) << 32,
            len: input.long()?,
            flags: input.word()?,
            next: input.word()?,
        })
    }

    fn encode(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.addr.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.len.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.flags.to_le_bytes());
        bytes[14..].copy_from_slice(&self.next.to_le_bytes());
        bytes
    }
}

/// The guest's memory and what it negotiated.
struct Guest {
    memory: Arc<GuestMemoryMmap>,
    size: u16,
    features: Features,
}

impl Guest {
    fn new(size: u16, features: Features) -> Self {
        let regions = REGIONS.map(|(start, len)| (GuestAddress(start), len));
        Self {
            memory: Arc::new(GuestMemoryMmap::from_ranges(&regions).unwrap()),
            size,
            features,
        }
    }

    fn ring(&self) -> SplitRing {
        let config = RingConfig {
            size: self.size,
            desc: 0,
            avail: AVAIL,
            used: USED,
            next_avail: 0,
            event_idx: true,
            indirect: self.features.contains(Features::INDIRECT_DESC),
        };
        let map = Rc::new(GuestMap::new(Arc::clone(&self.memory)));
        SplitRing::new(config, map).expect("the ring lies in memory")
    }

    /// Writes as far as there is memory.
    fn write(&self, addr: u64, bytes: &[u8]) {
        for (addr, byte) in (addr..).zip(bytes) {
            self.memory.write_obj(*byte, GuestAddress(addr)).ok();
        }
    }

    fn word(&self, addr: u64) -> u16 {
        self.memory.read_obj(GuestAddress(addr)).unwrap()
    }

    /// All memory.
    fn snapshot(&self) -> Memory {
        let regions = REGIONS.map(|(start, len)| {
            let mut bytes = vec![0; len];
            self.memory
                .read_slice(&mut bytes, GuestAddress(start))
                .unwrap();
            bytes
        });
        Memory { regions }
    }
}

/// A copy of guest memory.
#[derive(Clone, PartialEq, Eq)]
struct Memory {
    regions: [Vec<u8>; REGIONS.len()],
}

impl Memory {
    /// Which byte of which region an address means.
    fn locate(addr: u64) -> Option<(usize, usize)> {
        REGIONS.iter().enumerate().find_map(|(nth, &(start, len))| {
            let offset = usize::try_from(addr.checked_sub(start)?).ok()?;
            (offset < len).then_some((nth, offset))
        })
    }

    fn get(&self, addr: u64) -> Option<u8> {
        Self::locate(addr).map(|(region, offset)| self.regions[region][offset])
    }

    fn set(&mut self, addr: u64, byte: u8) {
        let (region, offset) = Self::locate(addr).expect("a checked address");
        self.regions[region][offset] = byte;
    }

    /// Writes a used entry as the device must.
    fn stage(&mut self, guest: &Guest, index: u16, head: u16, len: usize) {
        let at = USED + 4 + 8 * u64::from(index % guest.size);
        let len = u32::try_from(len).unwrap();
        let entry = [u32::from(head).to_le_bytes(), len.to_le_bytes()].concat();
        for (addr, byte) in (at..).zip(entry) {
            self.set(addr, byte);
        }
    }

    /// A descriptor; a table may not go over the border of a region.
    fn descriptor(&self, addr: u64) -> Option<Descriptor> {
        let bytes: Option<Vec<u8>> = (0..16).map(|i| self.get(addr.checked_add(i)?)).collect();
        Descriptor::read(&mut Input::new(&bytes?))
    }

    fn word(&self, addr: u64) -> u16 {
        u16::from_le_bytes([self.get(addr).unwrap(), self.get(addr + 1).unwrap()])
    }

    /// All addresses of the buffers of a chain, in order; `None` for a chain that is not valid.
    fn chain(&self, guest: &Guest, head: u16, is_writable: bool) -> Option<Vec<u64>> {
        let mut walk = Walk {
            memory: self,
            is_writable,
            buffers: 0,
            addresses: Vec::new(),
        };
        let mut index = head;
        for _ in 0..guest.size {
            if index >= guest.size {
                return None;
            }
            let descriptor = self.descriptor(u64::from(index) * 16)?;
            if descriptor.flags & INDIRECT != 0 {
                let may = guest.features.contains(Features::INDIRECT_DESC);
                if !may || descriptor.flags & NEXT != 0 {
                    return None;
                }
                walk.indirect(descriptor)?;
                return Some(walk.addresses);
            }
            walk.buffer(descriptor)?;
            if descriptor.flags & NEXT == 0 {
                return Some(walk.addresses);
            }
            index = descriptor.next;
        }
        None
    }
}

/// A chain on its way.
struct Walk<'a> {
    memory: &'a Memory,
    is_writable: bool,
    buffers: usize,
    addresses: Vec<u64>,
}

impl Walk<'_> {
    fn indirect(&mut self, table: Descriptor) -> Option<()> {
        let len = u64::from(table.len);
        if len == 0 || len % 16 != 0 {
            return None;
        }
        let (first, _) = Memory::locate(table.addr)?;
        let (last, _) = Memory::locate(table.addr.checked_add(len - 1)?)?;
        if first != last {
            return None;
        }
        let mut index = 0;
        loop {
            if index >= len / 16 {
                return None;
            }
            let descriptor = self.memory.descriptor(table.addr + index * 16)?;
            if descriptor.flags & INDIRECT != 0 {
                return None;
            }
            self.buffer(descriptor)?;
            if descriptor.flags & NEXT == 0 {
                return Some(());
            }
            index = descriptor.next.into();
        }
    }

    fn buffer(&mut self, descriptor: Descriptor) -> Option<()> {
        self.buffers += 1;
        let is_writable = descriptor.flags & WRITE != 0;
        if self.buffers > CHAIN_MAX || is_writable != self.is_writable {
            return None;
        }
        let end = descriptor.addr.checked_add(descriptor.len.into())?;
        // Before a buffer of 4 GiB is listed byte by byte.
        if descriptor.len > 0 {
            Memory::locate(end - 1)?;
        }
        for addr in descriptor.addr..end {
            Memory::locate(addr)?;
            self.addresses.push(addr);
        }
        Some(())
    }
}

enum Queue {
    Rx(RxQueue),
    Tx(TxQueue),
}

/// Both sides, and what must come of it.
struct World {
    guest: Guest,
    queue: Queue,
    /// As the guest counts.
    avail_idx: u16,
    /// Next available entry in the eyes of the device.
    next: u16,
    /// The available index when the transmit queue last looked at it; it does so at its end only.
    seen: u16,
    /// How many chains waited when the device last found too few. It does not look at them again
    /// while there are no more, whatever the guest makes of them.
    short: Option<usize>,
}

impl World {
    fn step(&mut self, step: Step) -> Result<(), QueueFault> {
        match step {
            Step::Descriptor(index, descriptor) => {
                let index = u64::from(index % self.guest.size);
                self.guest.write(index * 16, &descriptor.encode());
            }
            Step::Post(head) => {
                let slot = u64::from(self.avail_idx % self.guest.size);
                self.guest.write(AVAIL + 4 + 2 * slot, &head.to_le_bytes());
                self.avail_idx = self.avail_idx.wrapping_add(1);
                self.guest.write(AVAIL + 2, &self.avail_idx.to_le_bytes());
            }
            Step::AvailIndex(idx) => {
                self.avail_idx = idx;
                self.guest.write(AVAIL + 2, &idx.to_le_bytes());
            }
            Step::Write(at, bytes) => self.guest.write(at.into(), &bytes),
            Step::Serve(len) => return self.serve(len.into()),
            Step::Publish => {
                match &mut self.queue {
                    Queue::Rx(rx) => rx.publish(),
                    Queue::Tx(tx) => tx.publish(),
                };
                self.check_used();
                return Ok(());
            }
        }
        Ok(())
    }

    /// Nothing is used that was not taken, and nothing is shown before it is published.
    fn check_used(&self) {
        let shown = self.guest.word(USED + 2);
        let position = match &self.queue {
            Queue::Rx(rx) => rx.position(),
            Queue::Tx(tx) => tx.position(),
        };
        let ahead = position.wrapping_sub(shown);
        assert!(ahead <= self.next.wrapping_sub(shown));
    }

    fn serve(&mut self, len: usize) -> Result<(), QueueFault> {
        let before = self.guest.snapshot();
        match self.queue {
            Queue::Rx(_) => self.fill(before, len),
            Queue::Tx(_) => self.take(before),
        }
    }

    /// The heads up to an available index, or the fault that the index is.
    fn waiting(&self, memory: &Memory, avail: u16) -> Result<Vec<u16>, QueueFault> {
        let count = avail.wrapping_sub(self.next);
        if count > self.guest.size {
            let position = self.next;
            return Err(QueueFault::AvailIndex { avail, position });
        }
        let slots = (0..count).map(|nth| self.next.wrapping_add(nth) % self.guest.size);
        Ok(slots
            .map(|slot| memory.word(AVAIL + 4 + 2 * u64::from(slot)))
            .collect())
    }

    fn take(&mut self, mut before: Memory) -> Result<(), QueueFault> {
        if self.seen == self.next {
            self.seen = before.word(AVAIL + 2);
        }
        let waiting = self.waiting(&before, self.seen);
        let Queue::Tx(tx) = &mut self.queue else {
            unreachable!("the caller looked");
        };
        let found = tx.take();
        let head = match (&waiting, &found) {
            (Err(fault), Err(found)) => {
                assert_eq!(fault, found);
                return Err(*fault);
            }
            (Ok(waiting), Err(QueueFault::HeadIndex(head))) => {
                assert!(*head >= self.guest.size && waiting.first() == Some(head));
                return Err(QueueFault::HeadIndex(*head));
            }
            (Ok(waiting), Ok(None)) => {
                assert!(waiting.is_empty());
                return Ok(());
            }
            (Ok(waiting), Ok(Some(_))) => waiting[0],
            other => panic!("{other:?}"),
        };
        let chain = before.chain(&self.guest, head, false);
        found?;
        match tx.frame(0, &mut Pieces::default()) {
            Some(Tx::Dropped(reason)) => {
                assert_eq!(reason == TxDrop::BadChain, chain.is_none(), "{reason:?}");
            }
            Some(Tx::Frame(frame)) => {
                let chain = chain.expect("a frame out of a bad chain");
                let bytes = chain[VNET_HDR_LEN..]
                    .iter()
                    .map(|&addr| before.get(addr).unwrap());
                let bytes: Vec<u8> = bytes.collect();
                let mut found = frame.head.to_vec();
                for slice in frame.rest() {
                    let start = found.len();
                    found.resize(start + slice.len(), 0);
                    slice.copy_to(&mut found[start..]);
                }
                assert!(found == bytes);
            }
            None => unreachable!("looked at above"),
        }
        tx.complete(1);
        before.stage(&self.guest, self.next, head, 0);
        self.next = self.next.wrapping_add(1);
        assert!(self.guest.snapshot() == before, "other bytes were written");
        Ok(())
    }

    fn fill(&mut self, mut expected: Memory, len: usize) -> Result<(), QueueFault> {
        let waiting = self.waiting(&expected, expected.word(AVAIL + 2));
        let vnet = VnetHdr::default();
        let packet: Vec<u8> = (0..len).map(|at| at.to_le_bytes()[0] | 1).collect();
        let pieces = packet.chunks(len.div_ceil(3).max(1));
        let Queue::Rx(rx) = &mut self.queue else {
            unreachable!("the caller looked");
        };
        let bad_before = rx.stats().bad_chains + rx.stats().spoilt_chains;
        let found = rx.fill_from(vnet, len, pieces);
        let returned = rx.stats().bad_chains + rx.stats().spoilt_chains - bad_before;
        let returned = u16::try_from(returned).unwrap();

        let count = waiting.as_ref().map_or(0, Vec::len);
        let may_be_short = self.short.take() == Some(count);
        let plan = waiting.and_then(|waiting| self.plan(&mut expected, &waiting, len));
        if may_be_short && found == Ok(Fill::NoBuffers) && returned == 0 {
            self.short = Some(count);
            return Ok(());
        }
        let plan = match (plan, found) {
            (Ok(plan), Ok(_)) => plan,
            (Err(fault), Err(found)) => {
                assert_eq!(fault, found);
                return Err(fault);
            }
            other => panic!("{:?}", other.1),
        };
        assert_eq!(returned, plan.returned, "{found:?} of {count}");
        self.next = self.next.wrapping_add(returned);
        match found? {
            Fill::Filled { buffers } => {
                let chains = plan.chains.expect("the guest had no room");
                assert_eq!(usize::from(buffers), chains.len());
                let header = VnetHdr {
                    num_buffers: buffers,
                    ..vnet
                };
                let bytes = [&header.encode(), &packet[..]].concat();
                self.fill_in(&mut expected, &chains, &bytes);
                self.next = self.next.wrapping_add(buffers);
            }
            Fill::TooBig => assert!(plan.chains.is_none()),
            Fill::NoBuffers => {
                assert!(plan.chains.is_none());
                self.short = Some(count - usize::from(returned));
            }
        }
        assert!(
            self.guest.snapshot() == expected,
            "other bytes were written"
        );
        Ok(())
    }

    /// Writes `bytes`, and the used entries, into a copy of the memory as the device must.
    fn fill_in(&self, memory: &mut Memory, chains: &[(u16, Vec<u64>)], bytes: &[u8]) {
        let addresses = chains.iter().flat_map(|(_, addresses)| addresses);
        for (&addr, &byte) in addresses.zip(bytes) {
            memory.set(addr, byte);
        }
        let mut left = bytes.len();
        for (nth, (head, addresses)) in (0..).zip(chains) {
            let len = left.min(addresses.len());
            memory.stage(&self.guest, self.next.wrapping_add(nth), *head, len);
            left -= len;
        }
        assert_eq!(left, 0);
    }

    /// What must happen to a packet of this length. Chains that go back are so in `memory`.
    fn plan(&self, memory: &mut Memory, waiting: &[u16], len: usize) -> Result<Plan, QueueFault> {
        let is_mergeable = self.guest.features.contains(Features::MRG_RXBUF);
        let needed = VNET_HDR_LEN + len;
        let mut plan = Plan {
            returned: 0,
            chains: None,
        };
        let mut chains: Vec<(u16, Vec<u64>)> = Vec::new();
        let mut have = 0;
        for &head in waiting {
            if head >= self.guest.size {
                return Err(QueueFault::HeadIndex(head));
            }
            let least = if chains.is_empty() { VNET_HDR_LEN } else { 0 };
            match memory.chain(&self.guest, head, true) {
                Some(chain) if chain.len() > least => {
                    have += chain.len();
                    chains.push((head, chain));
                }
                _ => {
                    for head in chains.drain(..).map(|(head, _)| head).chain([head]) {
                        let index = self.next.wrapping_add(plan.returned);
                        memory.stage(&self.guest, index, head, 0);
                        plan.returned += 1;
                    }
                    have = 0;
                    continue;
                }
            }
            if have >= needed {
                plan.chains = Some(chains);
                break;
            }
            if !is_mergeable {
                break;
            }
        }
        Ok(plan)
    }
}

/// What must happen to a packet.
struct Plan {
    /// Chains that go back empty before it.
    returned: u16,
    /// Those that it is written into; `None` if there is no room.
    chains: Option<Vec<(u16, Vec<u64>)>>,
}

/// Chains as a sound driver makes them, in both directions, and one of each fault.
pub fn seeds() -> Vec<Vec<u8>> {
    let descriptor = |addr: u64, len: u32, flags: u16, next: u16| Descriptor {
        addr,
        len,
        flags,
        next,
    };
    let one = |flags: u8, steps: &[Step]| {
        let mut bytes = vec![flags, 3];
        steps.iter().for_each(|step| step.encode(&mut bytes));
        bytes
    };
    let mut seeds = Vec::new();
    for (direction, bits) in [(0, WRITE), (4, 0)] {
        for flags in [3 | direction, 2 | direction] {
            let table: Vec<u8> = [
                descriptor(0x2800, 12, bits | NEXT, 1),
                descriptor(0x1ff0, 0x40, bits, 0),
            ]
            .into_iter()
            .flat_map(Descriptor::encode)
            .collect();
            let sound = [
                Step::Descriptor(0, descriptor(0x1000, 0x100, bits | NEXT, 1)),
                Step::Descriptor(1, descriptor(0x5000, 0x1000, bits, 0)),
                Step::Descriptor(2, descriptor(0x3000, 32, INDIRECT, 0)),
                Step::Write(0x3000, table),
                Step::Post(0),
                Step::Post(2),
                Step::Serve(60),
                Step::Publish,
                Step::Serve(20),
                Step::Publish,
            ];
            seeds.push(one(flags, &sound));
            for bad in [
                descriptor(0x1000, 0x100, bits | NEXT, 0),
                descriptor(0x1000, 0x100, bits | NEXT, 8),
                descriptor(0x1000, 0x100, bits ^ WRITE, 0),
                descriptor(0x3ff0, 0x20, bits, 0),
                descriptor(u64::MAX - 8, 0x20, bits, 0),
                descriptor(0x1000, u32::MAX, bits, 0),
                descriptor(0x3000, 33, INDIRECT, 0),
                descriptor(0, 16, INDIRECT, 0),
            ] {
                let mut steps = sound.to_vec();
                steps.insert(4, Step::Descriptor(0, bad));
                seeds.push(one(flags, &steps));
            }
            let ahead = [Step::AvailIndex(9), Step::Serve(60)];
            seeds.push(one(flags, &ahead));
        }
    }
    seeds
}
