//! A trace: what passes between uplink and guest, as a capture.
//!
//! Towards the guest that is what it got, merged, with a comment that says what the virtio-net
//! header says of it; from the guest, what the uplink took. All packets of one turn have the same
//! time, because the clock is read once for each.
//!
//! A data thread copies each packet into one of a fixed number of buffers and hands it to a thread
//! that writes. When the disk is slower than the guest the buffers run out, and packets are
//! missing from the trace, counted. Nobody waits.

use std::cell::Cell;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use log::{debug, warn};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::pcapng::{Direction, PcapngWriter};
use crate::sys::{GuestSlice, clock};
use crate::time::Instant;
use crate::uplink::BUF_LEN;
use crate::wire::VnetHdr;
use crate::wire::vnet_hdr::{F_DATA_VALID, F_NEEDS_CSUM};

/// Packets of one pair that may wait to be written. Memory that no packet touched costs address
/// space only.
const WAITING_MAX: usize = 512;

/// A packet on its way to the file.
struct Record {
    pair: usize,
    time: Instant,
    direction: Direction,
    vnet: VnetHdr,
    segs: u32,
    bytes: Vec<u8>,
}

/// Where one data thread puts its packets.
#[derive(Debug)]
pub struct Tracer {
    pair: usize,
    records: SyncSender<Record>,
    spare: Receiver<Vec<u8>>,
    /// From the clock of the data threads to the time of day.
    epoch: Duration,
    stats: Cell<TraceStats>,
}

/// What became of the packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceStats {
    /// Handed over to be written.
    pub packets: u64,
    /// Left out because the writer was behind.
    pub lost: u64,
}

/// The thread that writes. It ends when all tracers are gone.
#[derive(Debug)]
pub struct Trace {
    thread: JoinHandle<()>,
}

/// A trace without a file: what the tracers hand over waits, or is lost and counted. So whatever
/// else can fail does before a file is replaced.
pub struct Draft {
    todo: Receiver<Record>,
    homes: Vec<SyncSender<Vec<u8>>>,
}

impl Trace {
    /// Begins a capture in `path`, with a tracer for each of `pairs` queue pairs. An existing file
    /// is replaced, unless another process writes its trace there.
    ///
    /// # Errors
    /// The file cannot be made or written or is in use, or there is no thread to be had.
    pub fn create(path: &Path, pairs: usize) -> io::Result<(Self, Vec<Tracer>)> {
        let (draft, tracers) = Draft::new(pairs);
        Ok((draft.begin(path)?, tracers))
    }

    /// The same into any output.
    ///
    /// # Errors
    /// Those of the output, or there is no thread to be had.
    pub fn start(
        out: impl Write + Send + 'static,
        pairs: usize,
    ) -> io::Result<(Self, Vec<Tracer>)> {
        let (draft, tracers) = Draft::new(pairs);
        Ok((draft.begin_into(out)?, tracers))
    }

    /// Waits until everything is written. All tracers have to be gone.
    pub fn finish(self) {
        if self.thread.join().is_err() {
            warn!("the trace ended with an internal error");
        }
    }
}

impl Draft {
    /// Makes a tracer for each of `pairs` queue pairs.
    #[must_use]
    pub fn new(pairs: usize) -> (Self, Vec<Tracer>) {
        let epoch = clock::epoch();
        let (records, todo) = sync_channel(WAITING_MAX * pairs.max(1));
        let mut homes = Vec::new();
        let mut tracers = Vec::new();
        for pair in 0..pairs {
            let (home, spare) = sync_channel(WAITING_MAX);
            for _ in 0..WAITING_MAX {
                // There is room for all of them.
                let _ = home.try_send(Vec::with_capacity(BUF_LEN));
            }
            homes.push(home);
            tracers.push(Tracer {
                pair,
                records: records.clone(),
                spare,
                epoch,
                stats: Cell::default(),
            });
        }
        (Self { todo, homes }, tracers)
    }

    /// Begins the capture in `path`, as [`Trace::create`] does.
    ///
    /// # Errors
    /// The same.
    pub fn begin(self, path: &Path) -> io::Result<Trace> {
        self.begin_into(BufWriter::new(claim(path)?))
    }

    fn begin_into(self, out: impl Write + Send + 'static) -> io::Result<Trace> {
        let mut writer = PcapngWriter::new(out)?;
        writer.flush()?;
        let Self { todo, homes } = self;
        let write = move || {
            if let Err(error) = write_all(&mut writer, &todo, &homes) {
                warn!("the trace ends here: {error}");
            }
        };
        let thread = Builder::new().name("trace".into()).spawn(write)?;
        Ok(Trace { thread })
    }
}

impl Tracer {
    /// A packet that the guest got, of `segs` frames.
    pub(super) fn received<'a>(
        &self,
        now: Instant,
        vnet: &VnetHdr,
        segs: u32,
        slices: impl Iterator<Item = &'a [u8]>,
    ) {
        self.put(now, Direction::Inbound, (vnet, segs), |bytes| {
            slices.for_each(|slice| append(bytes, slice));
        });
    }

    /// A frame that the uplink took.
    pub(super) fn sent(&self, now: Instant, vnet: &VnetHdr, head: &[u8], rest: &[GuestSlice<'_>]) {
        self.put(now, Direction::Outbound, (vnet, 1), |bytes| {
            append(bytes, head);
            for slice in rest {
                let start = bytes.len();
                let end = (start + slice.len()).min(bytes.capacity());
                bytes.resize(end, 0);
                slice.copy_to(bytes.get_mut(start..).unwrap_or_default());
            }
        });
    }

    fn put(
        &self,
        now: Instant,
        direction: Direction,
        (vnet, segs): (&VnetHdr, u32),
        fill: impl FnOnce(&mut Vec<u8>),
    ) {
        let mut stats = self.stats.get();
        let is_taken = self.spare.try_recv().is_ok_and(|mut bytes| {
            bytes.clear();
            fill(&mut bytes);
            let record = Record {
                pair: self.pair,
                time: now + self.epoch,
                direction,
                vnet: *vnet,
                segs,
                bytes,
            };
            self.records.try_send(record).is_ok()
        });
        if is_taken {
            stats.packets += 1;
        } else {
            stats.lost += 1;
        }
        self.stats.set(stats);
    }

    pub(super) const fn stats(&self) -> TraceStats {
        self.stats.get()
    }
}

/// Opens a file, empty, that nobody else who asks like this can have until it is closed.
fn claim(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    let file = options
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)?;
    // Of a pipe or a terminal there is nothing to lose.
    if file.metadata()?.is_file() {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => {
                let text = "another process writes its trace there";
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
            }
            // A file system without locks.
            Err(error) => debug!("the trace is not locked: {error}"),
            Ok(()) => {}
        }
        file.set_len(0)?;
    }
    Ok(file)
}

/// Appends what there is room for, which is every packet there can be.
fn append(bytes: &mut Vec<u8>, slice: &[u8]) {
    let room = bytes.capacity() - bytes.len();
    bytes.extend_from_slice(slice.get(..room).unwrap_or(slice));
}

fn write_all(
    writer: &mut PcapngWriter<impl Write>,
    todo: &Receiver<Record>,
    homes: &[SyncSender<Vec<u8>>],
) -> io::Result<()> {
    let mut comment = String::new();
    loop {
        let record = match todo.try_recv() {
            Ok(record) => record,
            Err(TryRecvError::Disconnected) => return writer.flush(),
            Err(TryRecvError::Empty) => {
                // Who looks at the file sees everything but what is still to come.
                writer.flush()?;
                match todo.recv() {
                    Ok(record) => record,
                    Err(_) => return Ok(()),
                }
            }
        };
        comment.clear();
        describe(&mut comment, &record);
        let told = (!comment.is_empty()).then_some(comment.as_str());
        let slices = std::iter::once(record.bytes.as_slice());
        writer.packet_of(record.time, slices, Some(record.direction), told)?;
        if let Some(home) = homes.get(record.pair) {
            // The tracer may be gone.
            let _ = home.try_send(record.bytes);
        }
    }
}

/// What the virtio-net header says beyond the bytes.
fn describe(text: &mut String, record: &Record) {
    let vnet = &record.vnet;
    let mut parts = Vec::new();
    if vnet.is_gso() {
        let mut part = format!("gso type {:#x} size {}", vnet.gso_type, vnet.gso_size);
        // Writing to a string does not fail.
        let _ = write!(part, " headers {}", vnet.hdr_len);
        if record.segs > 1 {
            let _ = write!(part, " segments {}", record.segs);
        }
        parts.push(part);
    }
    if vnet.flags & F_NEEDS_CSUM != 0 {
        let (start, offset) = (vnet.csum_start, vnet.csum_offset);
        parts.push(format!(
            "checksum to be completed: start {start} offset {offset}"
        ));
    }
    if vnet.flags & F_DATA_VALID != 0 {
        parts.push("checksum verified".to_owned());
    }
    text.push_str(&parts.join("; "));
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Condvar, Mutex};

    use super::*;
    use crate::wire::vnet_hdr::GSO_TCPV4;

    /// An output whose writes wait until it is open.
    #[derive(Clone, Default)]
    struct Gate {
        bytes: Arc<Mutex<Vec<u8>>>,
        is_shut: Arc<(Mutex<bool>, Condvar)>,
    }

    impl Gate {
        fn shut(&self, is_shut: bool) {
            *self.is_shut.0.lock().unwrap() = is_shut;
            self.is_shut.1.notify_all();
        }
    }

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let shut = self.is_shut.0.lock().unwrap();
            drop(self.is_shut.1.wait_while(shut, |is_shut| *is_shut).unwrap());
            self.bytes.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    const MERGED: VnetHdr = VnetHdr {
        flags: F_NEEDS_CSUM,
        gso_type: GSO_TCPV4,
        hdr_len: 54,
        gso_size: 1448,
        csum_start: 34,
        csum_offset: 16,
        num_buffers: 0,
    };

    fn contains(bytes: &[u8], part: &[u8]) -> bool {
        bytes.windows(part.len()).any(|window| window == part)
    }

    #[test]
    fn a_trace_in_use_is_left_alone_and_an_old_one_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace");
        std::fs::write(&path, [0; 1000]).unwrap();
        let first = Trace::create(&path, 1).unwrap();
        // A section and an interface, and nothing behind them.
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 60);
        let second = Trace::create(&path, 1).map(drop).unwrap_err();
        assert_eq!(second.kind(), io::ErrorKind::ResourceBusy);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 60);
        let (trace, tracers) = first;
        drop(tracers);
        trace.finish();
        let (trace, _) = Trace::create(&path, 1).unwrap();
        trace.finish();
    }

    #[test]
    fn both_directions_are_written_with_what_their_headers_say() {
        let gate = Gate::default();
        let (trace, mut tracers) = Trace::start(gate.clone(), 1).unwrap();
        let tracer = tracers.pop().unwrap();
        let now = Instant::from_nanos(5);
        let slices = [&b"head of a merged packet"[..], b", and payload"];
        tracer.received(now, &MERGED, 7, slices.into_iter());
        let mut rest = *b"the guest's memory";
        let rest = [GuestSlice::from(&mut rest[..])];
        tracer.sent(now, &VnetHdr::PLAIN, b"from ", &rest);
        assert_eq!(
            tracer.stats(),
            TraceStats {
                packets: 2,
                lost: 0
            }
        );
        drop(tracer);
        trace.finish();
        let bytes = gate.bytes.lock().unwrap();
        assert!(contains(&bytes, b"head of a merged packet, and payload"));
        assert!(contains(
            &bytes,
            b"gso type 0x1 size 1448 headers 54 segments 7; checksum to be"
        ));
        assert!(contains(&bytes, b"from the guest's memory"));
        // Option 2 is that of the direction: inbound, then outbound.
        assert!(contains(&bytes, &[2, 0, 4, 0, 1, 0, 0, 0]));
        assert!(contains(&bytes, &[2, 0, 4, 0, 2, 0, 0, 0]));
    }

    #[test]
    fn a_slow_disk_costs_packets_of_the_trace_and_no_time() {
        let gate = Gate::default();
        let (trace, mut tracers) = Trace::start(gate.clone(), 1).unwrap();
        let tracer = tracers.pop().unwrap();
        gate.shut(true);
        let many = WAITING_MAX as u64 + 100;
        for _ in 0..many {
            tracer.sent(Instant::ZERO, &VnetHdr::PLAIN, &[0; 60], &[]);
        }
        let stats = tracer.stats();
        assert_eq!(
            stats,
            TraceStats {
                packets: WAITING_MAX as u64,
                lost: 100
            }
        );
        gate.shut(false);
        // Buffers come back.
        while tracer.stats().packets == stats.packets {
            tracer.sent(Instant::ZERO, &VnetHdr::PLAIN, &[0; 60], &[]);
        }
        drop(tracer);
        trace.finish();
    }

    #[test]
    fn a_full_disk_ends_the_trace_and_nothing_else() {
        struct Full(usize);
        impl Write for Full {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0 = self
                    .0
                    .checked_sub(bytes.len())
                    .ok_or(io::ErrorKind::StorageFull)?;
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let (trace, mut tracers) = Trace::start(Full(200), 1).unwrap();
        let tracer = tracers.pop().unwrap();
        for _ in 0..WAITING_MAX * 3 {
            tracer.sent(Instant::ZERO, &VnetHdr::PLAIN, &[0; 60], &[]);
        }
        let stats = tracer.stats();
        assert_eq!(stats.packets + stats.lost, 3 * WAITING_MAX as u64);
        assert!(stats.lost > 0);
        drop(tracer);
        trace.finish();
    }
}
