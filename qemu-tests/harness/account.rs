//! What a measurement cost: the counters of all parties before and after.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::counters::{
    GuestCounters, InterfaceCounters, Snmp, TICKS_PER_SECOND, host_busy_ticks, sender_snmp,
};
use super::cpus::Cpus;
use super::netns::Sender;
use super::station::Station;
use super::wait::now;

/// The counters of all parties at one time.
#[derive(Debug)]
pub(crate) struct Account {
    at: Instant,
    guest: GuestCounters,
    sender: Snmp,
    sender_frames: u64,
    vcpu: Duration,
    backend: Duration,
    host_ticks: Option<u64>,
}

/// What was spent and counted between two accounts. Times of processors are in microseconds.
#[derive(Debug)]
pub(crate) struct Spent {
    pub(crate) seconds: f64,
    /// By the guest's own account.
    pub(crate) guest_us: f64,
    /// Of the guest's processors, by the host's finer account.
    pub(crate) vcpu_us: f64,
    /// The daemon, or for QEMU's own device all threads but the guest's processors.
    pub(crate) backend_us: f64,
    /// Of the processor that has everything but the guest's; none where nothing is bound.
    pub(crate) host_us: Option<f64>,
    pub(crate) rx_packets: f64,
    pub(crate) rx_bytes: f64,
    pub(crate) rx_interrupts: f64,
    pub(crate) rx_dropped: u64,
    pub(crate) tx_packets: f64,
    pub(crate) tx_bytes: f64,
    pub(crate) tx_interrupts: f64,
    /// That reached the sender's interface.
    pub(crate) sender_frames: f64,
    /// Segments that the sender sent again.
    pub(crate) sender_retransmissions: u64,
    guest: (Snmp, Snmp),
}

impl Account {
    /// Reads everything; `cpus` say where the parties run, if they are bound.
    pub(crate) fn take(sender: &Sender, station: &Station, cpus: Option<Cpus>) -> Result<Self> {
        let guest = GuestCounters::read(&station.vm)?;
        let (vcpu, rest) = station.vm.cpu_time()?;
        let backend = station
            .daemon
            .as_ref()
            .map_or(Ok(rest), |daemon| daemon.cpu_time())?;
        Ok(Account {
            at: now(),
            guest,
            sender: sender_snmp(sender)?,
            sender_frames: sender
                .inside(|| InterfaceCounters::read("eth0"))?
                .rx_packets,
            vcpu,
            backend,
            host_ticks: cpus.map(|cpus| host_busy_ticks(cpus.host)).transpose()?,
        })
    }

    /// What happened since `before`.
    pub(crate) fn since(self, before: Account) -> Spent {
        let (guest, earlier) = (self.guest, before.guest);
        let retransmitted = |snmp: &Snmp| snmp.get("Tcp.RetransSegs").copied().unwrap_or(0);
        let host_ticks = self.host_ticks.zip(before.host_ticks);
        Spent {
            seconds: (self.at - before.at).as_secs_f64(),
            guest_us: ticks(guest.busy_ticks - earlier.busy_ticks),
            vcpu_us: micros(self.vcpu.saturating_sub(before.vcpu)),
            backend_us: micros(self.backend.saturating_sub(before.backend)),
            host_us: host_ticks.map(|(after, before)| ticks(after - before)),
            rx_packets: count(guest.rx_packets - earlier.rx_packets),
            rx_bytes: count(guest.rx_bytes - earlier.rx_bytes),
            rx_interrupts: count(guest.rx_interrupts - earlier.rx_interrupts),
            rx_dropped: guest.rx_dropped - earlier.rx_dropped,
            tx_packets: count(guest.tx_packets - earlier.tx_packets),
            tx_bytes: count(guest.tx_bytes - earlier.tx_bytes),
            tx_interrupts: count(guest.tx_interrupts - earlier.tx_interrupts),
            sender_frames: count(self.sender_frames - before.sender_frames),
            sender_retransmissions: retransmitted(&self.sender) - retransmitted(&before.sender),
            guest: (earlier.snmp, guest.snmp),
        }
    }
}

impl Spent {
    /// By how much one of the guest's protocol counters rose.
    pub(crate) fn guest(&self, name: &str) -> u64 {
        let (before, after) = &self.guest;
        let value = |snmp: &Snmp| snmp.get(name).copied().unwrap_or(0);
        value(after) - value(before)
    }
}

/// Counts of a few seconds are far below 2^53.
#[expect(clippy::cast_precision_loss, reason = "counts of a few seconds")]
pub(crate) fn count(number: u64) -> f64 {
    number as f64
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn ticks(ticks: u64) -> f64 {
    count(ticks) / TICKS_PER_SECOND * 1e6
}
