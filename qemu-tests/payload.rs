//! Payload that is sent through a guest's device and compared at the other end by its hash.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::harness::wait::{wait_for, wait_until};
use crate::harness::{Sender, Vm};

/// How long one transfer may take under emulation.
const LIMIT: Duration = Duration::from_secs(60);

/// Address family of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub(crate) const BOTH: [Family; 2] = [Family::V4, Family::V6];

    pub(crate) fn digit(self) -> char {
        match self {
            Family::V4 => '4',
            Family::V6 => '6',
        }
    }

    pub(crate) fn address(self, ip4: &str, ip6: &str, port: u16) -> Result<SocketAddr> {
        let ip = match self {
            Family::V4 => ip4,
            Family::V6 => ip6,
        };
        Ok(SocketAddr::new(ip.parse()?, port))
    }
}

/// Bytes without a pattern that a misplaced segment could hide in: xorshift64 by Marsaglia.
pub(crate) fn random_bytes(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// TCP from the sender into the guest.
pub(crate) fn tcp_in(vm: &Vm, sender: &Sender, family: Family, length: usize) -> Result<()> {
    let port = 9000;
    let digit = family.digit();
    listen(
        vm,
        port,
        &format!("socat -u TCP{digit}-LISTEN:{port},reuseaddr OPEN:/tmp/in,creat,trunc"),
    )?;
    let payload = random_bytes(length);
    let address = family.address(&vm.ip4, &vm.ip6, port)?;
    sender.inside(|| -> Result<()> {
        let mut stream =
            TcpStream::connect_timeout(&address, LIMIT).context("connect to the guest")?;
        stream.set_write_timeout(Some(LIMIT))?;
        stream.write_all(&payload).context("send to the guest")?;
        Ok(())
    })?;
    arrived(vm, &payload).with_context(|| format!("TCP into the guest, {family:?}"))
}

/// TCP from the guest to the sender.
pub(crate) fn tcp_out(vm: &Vm, sender: &Sender, family: Family, length: usize) -> Result<()> {
    let address = family.address(&sender.ip4, &sender.ip6, 9000)?;
    let listener = sender.inside(|| TcpListener::bind(address))?;
    listener.set_nonblocking(true)?;
    let hash = vm.run(&format!(
        "head -c {length} /dev/urandom >/tmp/out && sha256sum </tmp/out"
    ))?;
    let digit = family.digit();
    let target = format!("TCP{digit}:{address}");
    vm.run(&format!(
        "(socat -u FILE:/tmp/out {target} >/tmp/socat.log 2>&1 &)"
    ))?;
    let (mut stream, _) = wait_for("the guest's connection", LIMIT, || {
        match listener.accept() {
            Ok(accepted) => Ok(Some(accepted)),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error.into()),
        }
    })?;
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(LIMIT))?;
    let mut received = Vec::new();
    stream
        .read_to_end(&mut received)
        .context("receive from the guest")?;
    ensure!(
        received.len() == length,
        "{} of {length} bytes came from the guest, {family:?}",
        received.len()
    );
    ensure!(
        sha256(&received)? == hash.trim(),
        "the guest's payload changed on its way, {family:?}"
    );
    Ok(())
}

/// TCP from one guest to another.
pub(crate) fn between(from: &Vm, to: &Vm, length: usize) -> Result<()> {
    let port = 9000;
    listen(
        to,
        port,
        &format!("socat -u TCP4-LISTEN:{port},reuseaddr OPEN:/tmp/in,creat,trunc"),
    )?;
    let hash = from.run(&format!(
        "head -c {length} /dev/urandom >/tmp/out && sha256sum </tmp/out && \
         socat -u FILE:/tmp/out TCP4:{}:{port}",
        to.ip4
    ))?;
    wait_until("the arrival of all bytes", LIMIT, || {
        Ok(to.run("sha256sum </tmp/in")? == hash)
    })
}

/// Size of a datagram: with headers just below an MTU of 1500.
const DATAGRAM: usize = 1400;

/// How many datagrams any socket's buffer takes.
const BURST: usize = 64;

/// UDP from the sender into the guest, at a rate that the guest can follow.
pub(crate) fn udp_in(vm: &Vm, sender: &Sender, family: Family, datagrams: usize) -> Result<()> {
    let port = 9001;
    let digit = family.digit();
    vm.run("echo 16777216 >/proc/sys/net/core/rmem_max")?;
    listen(
        vm,
        port,
        &format!(
            "socat -u -b 65536 UDP{digit}-RECV:{port},rcvbuf=8388608 OPEN:/tmp/in,creat,trunc"
        ),
    )?;
    let payload = random_bytes(datagrams * DATAGRAM);
    let target = family.address(&vm.ip4, &vm.ip6, port)?;
    sender.inside(|| -> Result<()> {
        let socket = UdpSocket::bind(family.address(&sender.ip4, &sender.ip6, 0)?)?;
        for (number, datagram) in payload.chunks(DATAGRAM).enumerate() {
            socket.send_to(datagram, target)?;
            if number % 16 == 15 {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        Ok(())
    })?;
    arrived(vm, &payload).with_context(|| format!("UDP into the guest, {family:?}"))?;
    vm.run("killall socat").map(drop)
}

/// UDP from the guest to the sender.
pub(crate) fn udp_out(vm: &Vm, sender: &Sender, family: Family, datagrams: usize) -> Result<()> {
    let length = datagrams * DATAGRAM;
    let address = family.address(&sender.ip4, &sender.ip6, 9001)?;
    let socket = sender.inside(|| UdpSocket::bind(address))?;
    socket.set_read_timeout(Some(LIMIT))?;
    let hash = vm.run(&format!(
        "head -c {length} /dev/urandom >/tmp/out && sha256sum </tmp/out"
    ))?;
    let target = format!("UDP{}:{address}", family.digit());
    let mut received = Vec::new();
    let mut datagram = [0; 2048];
    while received.len() < length {
        let (seek, burst) = (
            received.len(),
            (length - received.len()).min(BURST * DATAGRAM),
        );
        let file = format!("FILE:/tmp/out,seek={seek},readbytes={burst}");
        vm.run(&format!("socat -u -b {DATAGRAM} {file} {target}"))?;
        while received.len() < seek + burst {
            let n = socket
                .recv(&mut datagram)
                .with_context(|| format!("after {} of {length} bytes", received.len()))?;
            received.extend_from_slice(&datagram[..n]);
        }
    }
    ensure!(
        sha256(&received)? == hash.trim(),
        "the guest's datagrams changed on their way, {family:?}"
    );
    Ok(())
}

/// Everything both ways over both families; small, for tests that are about something else.
pub(crate) fn all_ways(vm: &Vm, sender: &Sender) -> Result<()> {
    for family in Family::BOTH {
        tcp_in(vm, sender, family, 4 << 20)?;
        tcp_out(vm, sender, family, 2 << 20)?;
        udp_in(vm, sender, family, BURST)?;
        udp_out(vm, sender, family, BURST)?;
    }
    Ok(())
}

/// Starts a listener in the guest and waits until its port is open.
fn listen(vm: &Vm, port: u16, command: &str) -> Result<()> {
    vm.run(&format!(
        "rm -f /tmp/in; ({command} >/tmp/socat.log 2>&1 &); n=0; \
         until cat /proc/net/tcp /proc/net/tcp6 /proc/net/udp /proc/net/udp6 | grep -q ':{port:04X} [0-9A-F]*:0000 0[7A] '; \
         do n=$((n+1)); [ $n -lt 500 ] || exit 1; usleep 10000; done"
    ))
    .map(drop)
}

/// Waits until the guest has all of `payload`, and compares it.
fn arrived(vm: &Vm, payload: &[u8]) -> Result<()> {
    let mut size = 0;
    let result = wait_until("the arrival of all bytes", LIMIT, || {
        size = vm.run("wc -c </tmp/in")?.trim().parse()?;
        Ok(size >= payload.len())
    });
    result.with_context(|| format!("{size} of {} bytes arrived", payload.len()))?;
    let hash = vm.run("sha256sum </tmp/in")?;
    ensure!(
        hash.trim() == sha256(payload)?,
        "the payload changed on its way into the guest"
    );
    Ok(())
}

/// In the form of the guest's `sha256sum`.
pub(crate) fn sha256(bytes: &[u8]) -> Result<String> {
    let mut child = Command::new("sha256sum")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("run sha256sum")?;
    child.stdin.take().context("no pipe")?.write_all(bytes)?;
    let output = child.wait_with_output()?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}
