//! Trains of datagrams into a guest, compared datagram by datagram.

use std::net::UdpSocket;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::harness::process::output_of;
use crate::harness::sandbox::RUN_DIR;
use crate::harness::{Kit, Sender, Vm};
use crate::payload::{Family, random_bytes, sha256};

/// How long the datagrams may take under emulation.
const LIMIT: Duration = Duration::from_secs(120);

/// A receiver in the guest: each datagram that it reads is one line in its log.
#[derive(Debug)]
pub(crate) struct Receiver<'a> {
    vm: &'a Vm,
    family: Family,
    port: u16,
}

impl<'a> Receiver<'a> {
    /// Starts to receive on `port`, with room for all that comes.
    pub(crate) fn start(vm: &'a Vm, sender: &Sender, family: Family, port: u16) -> Result<Self> {
        let digit = family.digit();
        // Both kernels know each other's MAC then: only few datagrams may wait for one.
        let (ping, address) = match family {
            Family::V4 => ("ping", &sender.ip4),
            Family::V6 => ("ping6", &sender.ip6),
        };
        vm.run(&format!(
            "for n in 1 2 3 4 5; do {ping} -c 1 -W 10 {address} && break; done"
        ))?;
        let listening = format!(
            "socat -d -d -d -u -b 65536 UDP{digit}-RECV:{port},rcvbuf=8388608 OPEN:/tmp/{port},creat,append"
        );
        vm.run(&format!(
            "echo 16777216 >/proc/sys/net/core/rmem_max; rm -f /tmp/{port} /tmp/{port}.log; \
             ({listening} >>/tmp/{port}.log 2>&1 & echo $! >/tmp/{port}.pid); n=0; \
             until cat /proc/net/udp /proc/net/udp6 | grep -q ':{port:04X} [0-9A-F]*:0000 07 '; \
             do n=$((n+1)); [ $n -lt 500 ] || exit 1; usleep 10000; done"
        ))?;
        Ok(Receiver { vm, family, port })
    }

    /// Sends datagrams of these sizes, trains with a pause behind each, and compares what the
    /// guest's program reads: the same sizes in the same order, the same bytes.
    pub(crate) fn check(&self, sender: &Sender, trains: &[Vec<usize>]) -> Result<()> {
        let sent: Vec<usize> = trains.iter().flatten().copied().collect();
        let payload = random_bytes(sent.iter().sum());
        self.send(sender, trains, &payload)?;
        self.compare(&sent, &payload)
    }

    /// As [`Receiver::check`], with `total` bytes that the sender's kernel is told to cut into
    /// datagrams of `size` (`UDP_SEGMENT`), and leaves that to the devices.
    pub(crate) fn check_segmented(
        &self,
        kit: &Kit,
        sender: &Sender,
        size: usize,
        total: usize,
    ) -> Result<()> {
        let payload = random_bytes(total);
        let file = Path::new(RUN_DIR).join(format!("train{}", self.port));
        std::fs::write(&file, &payload)?;
        let (vm, digit) = (self.vm, self.family.digit());
        let to = self.family.address(&vm.ip4, &vm.ip6, self.port)?;
        let mut socat = kit.tool("socat")?;
        socat
            .args(["-u", "-b", "65000"])
            .arg(format!("FILE:{}", file.display()))
            // SOL_UDP and UDP_SEGMENT. Source: `include/uapi/linux/udp.h`.
            .arg(format!("UDP{digit}:{to},setsockopt-int=17:103:{size}"));
        sender.inside(|| output_of(&mut socat))?;
        let mut sent = vec![size; total / size];
        sent.extend(Some(total % size).filter(|&rest| rest > 0));
        self.compare(&sent, &payload)
    }

    fn compare(&self, sent: &[usize], payload: &[u8]) -> Result<()> {
        let (total, port) = (payload.len(), self.port);
        // One command, because a busy guest takes long for each; the files are empty afterwards.
        let answer = self.vm.attempt(
            &format!(
                "n=0; until [ $(wc -c </tmp/{port}) -ge {total} ] || [ $n -ge 1000 ]; \
                 do n=$((n+1)); usleep 20000; done; wc -c </tmp/{port}; sha256sum </tmp/{port}; \
                 sed -n 's/.*transferred \\([0-9]*\\) bytes from.*/\\1/p' /tmp/{port}.log; \
                 : >/tmp/{port}; : >/tmp/{port}.log"
            ),
            LIMIT,
        )?;
        let (arrived, seen) = answer.text.split_once('\n').context("no size")?;
        ensure!(
            arrived.trim().parse() == Ok(total),
            "{arrived} of {total} bytes arrived"
        );
        let (hash, sizes) = seen.split_once('\n').context("no hash")?;
        let sizes: Vec<usize> = sizes.lines().map(str::parse).collect::<Result<_, _>>()?;
        ensure!(sizes == sent, "received {sizes:?} instead of {sent:?}");
        ensure!(hash.trim() == sha256(payload)?, "the payload changed");
        Ok(())
    }

    fn send(&self, sender: &Sender, trains: &[Vec<usize>], payload: &[u8]) -> Result<()> {
        let to = self.family.address(&self.vm.ip4, &self.vm.ip6, self.port)?;
        let from = self.family.address(&sender.ip4, &sender.ip6, 0)?;
        sender.inside(|| -> Result<()> {
            let socket = UdpSocket::bind(from)?;
            let mut rest = payload;
            for train in trains {
                for &size in train {
                    let (datagram, later) = rest.split_at(size);
                    socket.send_to(datagram, to)?;
                    rest = later;
                }
                // What the guest is to follow has to be sent at its rate.
                std::thread::sleep(Duration::from_millis(5));
            }
            Ok(())
        })
    }
}

impl Drop for Receiver<'_> {
    fn drop(&mut self) {
        let port = self.port;
        // The guest may have gone.
        let _ = self.vm.run(&format!("kill $(cat /tmp/{port}.pid); true"));
    }
}
