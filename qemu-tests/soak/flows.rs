//! The traffic of a soak: each flow is a thread on the host with a server in the guest, goes on
//! until it is told to stop, and compares all that it moves.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::harness::process::output_of;
use crate::harness::{Kit, Sender, Vm};
use crate::payload::{Family, random_bytes, sha256};
use crate::train::Receiver;

/// How long one answer may take under emulation and with losses.
const LIMIT: Duration = Duration::from_secs(120);

/// How much is moved before it is compared.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Portion {
    /// Bytes of a bulk transfer.
    bulk: usize,
    /// Times that all kinds of trains are sent.
    trains: usize,
}

impl Portion {
    /// Large enough that a guest has more to do with frames than with starting programs, and small
    /// enough for each flow to get some done within a soak of `length`.
    pub(crate) fn of(length: Duration) -> Self {
        let scale = usize::try_from(length.as_secs() / 20)
            .unwrap_or(usize::MAX)
            .clamp(1, 8);
        Portion {
            bulk: scale * (512 << 10),
            trains: scale,
        }
    }

    /// Room for a whole transfer that the guest has not read yet, in bytes of its memory.
    ///
    /// A guest promises a window for frames that fill their buffers as well as the last ones did.
    /// If single frames follow super-frames, each in a page of its own, a buffer of the usual size
    /// overflows, and the guest throws away what it has asked for (`TCPRcvQDrop`).
    pub(crate) fn guest_memory(self) -> usize {
        4 * self.bulk
    }
}

const SINK: u16 = 9100;
const SOURCE: u16 = 9110;
const ECHO: u16 = 9120;
const TRAIN: u16 = 9130;
const PROBE: u16 = 9150;
/// Of VXLAN, whose datagrams are never merged.
const TUNNEL: u16 = 4789;

/// What a flow has done so far.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    pub(crate) rounds: AtomicU64,
    pub(crate) bytes: AtomicU64,
    /// Messages without an answer in time, where that is no failure.
    pub(crate) unanswered: AtomicU64,
}

impl Progress {
    fn add(&self, bytes: usize) {
        self.rounds.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub(crate) fn read(&self) -> (u64, u64) {
        (self.rounds.load(Relaxed), self.bytes.load(Relaxed))
    }
}

/// Starts what answers the flows, once for each guest.
pub(crate) fn serve(vm: &Vm, portion: Portion) -> Result<()> {
    let server = |port: u16, program: &str| {
        format!(
            "(socat -t 100 TCP6-LISTEN:{port},ipv6only=0,fork,reuseaddr,backlog=64 {program} >/tmp/{port}.log 2>&1 &)"
        )
    };
    let servers = [
        server(SINK, "SYSTEM:sha256sum"),
        server(SOURCE, "'SYSTEM:cat /tmp/data'"),
        server(ECHO, "EXEC:cat"),
    ];
    vm.run(&format!(
        "head -c {} /dev/urandom >/tmp/data; {}; n=0; \
         until [ $(grep -c ':23[8-A][0-9A-F] 0*:0000 0A' /proc/net/tcp6) = 3 ]; \
         do n=$((n+1)); [ $n -lt 500 ] || exit 1; usleep 20000; done",
        portion.bulk,
        servers.join("; ")
    ))
    .map(drop)
}

fn connect(to: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&to, LIMIT).context("connect to the guest")?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    Ok(stream)
}

fn at(address: &str, port: u16) -> Result<SocketAddr> {
    Ok(SocketAddr::new(address.parse()?, port))
}

/// Bulk into the guest, which answers with the hash of what it got.
pub(crate) fn into_guest(
    address: &str,
    portion: Portion,
    stop: &AtomicBool,
    done: &Progress,
) -> Result<()> {
    let payload = random_bytes(portion.bulk);
    let hash = sha256(&payload)?;
    while !stop.load(Relaxed) {
        let mut stream = connect(at(address, SINK)?)?;
        stream.write_all(&payload).context("send to the guest")?;
        stream.shutdown(Shutdown::Write)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).context("the hash")?;
        ensure!(
            answer.trim() == hash,
            "the payload changed on its way to {address}: {answer}"
        );
        done.add(payload.len());
    }
    Ok(())
}

/// Bulk out of the guest; `hash` is that of its file.
pub(crate) fn out_of_guest(
    address: &str,
    hash: &str,
    stop: &AtomicBool,
    done: &Progress,
) -> Result<()> {
    let mut received = Vec::new();
    while !stop.load(Relaxed) {
        let mut stream = connect(at(address, SOURCE)?)?;
        received.clear();
        stream.read_to_end(&mut received).context("receive")?;
        ensure!(
            sha256(&received)? == hash,
            "the {} bytes from {address} are not those that were sent",
            received.len()
        );
        done.add(received.len());
    }
    Ok(())
}

/// The hash of the file that [`out_of_guest`] fetches.
pub(crate) fn hash_of_source(vm: &Vm) -> Result<String> {
    Ok(vm.run("sha256sum </tmp/data")?.trim().to_owned())
}

/// Requests of a byte to several frames over one connection, each answered before the next.
pub(crate) fn request_response(address: &str, stop: &AtomicBool, done: &Progress) -> Result<()> {
    let payload = random_bytes(9000);
    let mut stream = connect(at(address, ECHO)?)?;
    stream.set_nodelay(true)?;
    let mut answer = vec![0; payload.len()];
    for size in [1, 60, 1448, 1449, 5000, 9000].into_iter().cycle() {
        if stop.load(Relaxed) {
            break;
        }
        stream.write_all(&payload[..size]).context("request")?;
        stream.read_exact(&mut answer[..size]).context("response")?;
        ensure!(
            answer[..size] == payload[..size],
            "an answer of {size} bytes from {address} differs"
        );
        done.add(size);
    }
    Ok(())
}

/// Trains of datagrams of all sizes, by turns over both address families and to a tunnel's port.
pub(crate) fn trains(
    vm: &Vm,
    sender: &Sender,
    portion: Portion,
    stop: &AtomicBool,
    done: &Progress,
) -> Result<()> {
    let sizes = [
        vec![1200; 30],
        vec![1472 - 20; 20],
        vec![64; 30],
        vec![1; 20],
        vec![900, 900, 300],
    ];
    let all = sizes.len() * portion.trains;
    let trains: Vec<_> = sizes.iter().cycle().take(all).cloned().collect();
    let bytes: usize = trains.iter().flatten().sum();
    let places = [
        (Family::V4, TRAIN),
        (Family::V6, TRAIN + 1),
        (Family::V4, TUNNEL),
    ];
    let receivers = places
        .map(|(family, port)| Receiver::start(vm, sender, family, port))
        .into_iter()
        .collect::<Result<Vec<_>>>()?;
    for (turn, receiver) in receivers.iter().enumerate().cycle() {
        // Each has had its turn, however slow the guest is.
        if stop.load(Relaxed) && done.read().0 >= receivers.len() as u64 {
            break;
        }
        let (family, port) = places[turn];
        receiver
            .check(sender, &trains)
            .with_context(|| format!("datagrams over {family:?} to port {port}"))?;
        done.add(bytes);
    }
    Ok(())
}

/// Starts what answers [`probes`].
pub(crate) fn serve_probes(vm: &Vm) -> Result<()> {
    vm.run(&format!(
        "(socat -t 5 UDP6-RECVFROM:{PROBE},ipv6only=0,fork PIPE >/tmp/probes.log 2>&1 &); n=0; \
         until grep -q ':{PROBE:04X} ' /proc/net/udp6; do n=$((n+1)); [ $n -lt 500 ] || exit 1; usleep 20000; done"
    ))
    .map(drop)
}

/// Datagrams that the guest sends back; those without an answer in time are counted.
pub(crate) fn probes(
    sender: &Sender,
    family: Family,
    address: &str,
    stop: &AtomicBool,
    done: &Progress,
) -> Result<()> {
    let to = at(address, PROBE)?;
    let socket = UdpSocket::bind(family.address(&sender.ip4, &sender.ip6, 0)?)?;
    socket.connect(to)?;
    // A busy guest is slow to start what answers.
    socket.set_read_timeout(Some(Duration::from_secs(2)))?;
    let payload = random_bytes(1400);
    let mut answer = [0; 2048];
    for number in 0_u64.. {
        if stop.load(Relaxed) {
            break;
        }
        let size = 8 + usize::try_from(number * 97 % 1392)?;
        let mut probe = payload[..size].to_vec();
        probe[..8].copy_from_slice(&number.to_be_bytes());
        // The host may know no way at the moment, and says so late.
        let sent = socket.send(&probe);
        let answered = loop {
            match socket.recv(&mut answer) {
                Ok(len) if answer[..len] == probe => break true,
                // That of an earlier one, for which nobody waited any longer.
                Ok(len) => ensure!(
                    len >= 8 && answer[..8] < probe[..8],
                    "an answer of {len} bytes from {address} differs"
                ),
                Err(_) => break false,
            }
        };
        if sent.is_ok() && answered {
            done.add(size);
        } else {
            done.unanswered.fetch_add(1, Relaxed);
        }
    }
    Ok(())
}

/// Echo requests; each must be answered.
///
/// One at a time: `busybox ping` waits for the answers to several only as long as for the first.
pub(crate) fn pings(
    kit: &Kit,
    sender: &Sender,
    address: &str,
    stop: &AtomicBool,
    done: &Progress,
) -> Result<()> {
    for size in ["56", "1400", "4000"].into_iter().cycle() {
        if stop.load(Relaxed) {
            break;
        }
        let mut ping = kit.tool("busybox")?;
        ping.args(["ping", "-q", "-c", "1", "-W", "20", "-s", size, address]);
        let said = sender.inside(|| output_of(&mut ping))?;
        ensure!(said.contains(" 0% packet loss"), "{said}");
        done.rounds.fetch_add(1, Relaxed);
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}
