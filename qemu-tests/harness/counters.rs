//! The kernel's counters, read from text files of the guest and of the sender's namespace.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use super::netns::Sender;
use super::vm::Vm;

/// Counters by name, such as `TcpExt.TCPOFOQueue`.
pub(crate) type Snmp = BTreeMap<String, u64>;

/// Reads the form of `/proc/net/snmp` and `/proc/net/netstat`: a line of names, a line of values.
pub(crate) fn parse_snmp(text: &str) -> Snmp {
    let mut counters = Snmp::new();
    let lines: Vec<_> = text.lines().collect();
    for pair in lines.chunks_exact(2) {
        let (Some((group, names)), Some((_, values))) =
            (pair[0].split_once(':'), pair[1].split_once(':'))
        else {
            continue;
        };
        for (name, value) in names.split_whitespace().zip(values.split_whitespace()) {
            // Some are limits that may be -1.
            if let Ok(value) = value.parse() {
                counters.insert(format!("{group}.{name}"), value);
            }
        }
    }
    counters
}

/// What the guest has counted so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct GuestCounters {
    /// Ticks of 10 ms in which its processors were busy.
    pub(crate) busy_ticks: u64,
    /// Interrupts of the network device's receive queues.
    pub(crate) rx_interrupts: u64,
    pub(crate) rx_packets: u64,
    pub(crate) rx_bytes: u64,
    pub(crate) rx_dropped: u64,
    /// Interrupts of its transmit queues.
    pub(crate) tx_interrupts: u64,
    /// Packets that the device has given back.
    pub(crate) tx_packets: u64,
    pub(crate) tx_bytes: u64,
    pub(crate) snmp: Snmp,
}

/// The ticks of `/proc/stat`, by all kernels we boot.
pub(crate) const TICKS_PER_SECOND: f64 = 100.0;

impl GuestCounters {
    pub(crate) fn read(vm: &Vm) -> Result<Self> {
        let text = vm.run(
            "head -n 1 /proc/stat; echo @; cat /proc/net/snmp /proc/net/netstat; echo @; cat /proc/interrupts; \
             echo @; cd /sys/class/net/eth0/statistics; cat rx_packets rx_bytes rx_dropped tx_packets tx_bytes",
        )?;
        let mut parts = text.split("@\n");
        let mut part = || {
            parts
                .next()
                .context("a part of the guest's counters is missing")
        };
        let stat: Vec<u64> = part()?
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
            .collect();
        let snmp = parse_snmp(part()?);
        let lines = part()?;
        let interrupts_of = |queue| {
            let of_queue = lines.lines().filter(|line| line.contains(queue));
            of_queue.map(interrupts).sum()
        };
        let device: Vec<u64> = part()?
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
            .collect();
        let [rx_packets, rx_bytes, rx_dropped, tx_packets, tx_bytes] = device[..] else {
            anyhow::bail!("the guest's device counters: {device:?}");
        };
        // user, nice, system, idle, iowait, irq, softirq, steal, ...
        let busy_ticks = stat.iter().take(8).sum::<u64>() - stat[3..5].iter().sum::<u64>();
        Ok(GuestCounters {
            busy_ticks,
            rx_interrupts: interrupts_of("-input."),
            rx_packets,
            rx_bytes,
            rx_dropped,
            tx_interrupts: interrupts_of("-output."),
            tx_packets,
            tx_bytes,
            snmp,
        })
    }

    /// One of the protocol counters; 0 for one that this kernel lacks.
    pub(crate) fn snmp(&self, name: &str) -> u64 {
        self.snmp.get(name).copied().unwrap_or(0)
    }
}

/// The sum over all processors of a line of `/proc/interrupts`.
fn interrupts(line: &str) -> u64 {
    line.split_whitespace()
        .skip(1)
        .map_while(|word| word.parse::<u64>().ok())
        .sum()
}

/// What the sender's kernel has counted so far.
pub(crate) fn sender_snmp(sender: &Sender) -> Result<Snmp> {
    // `/proc/net` is that of the process, not of the thread that went into the namespace.
    let text = sender.inside(|| std::fs::read_to_string("/proc/thread-self/net/snmp"))?;
    Ok(parse_snmp(&text))
}

/// What an interface has counted so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct InterfaceCounters {
    pub(crate) rx_packets: u64,
    pub(crate) rx_dropped: u64,
    pub(crate) tx_packets: u64,
    pub(crate) tx_dropped: u64,
}

impl InterfaceCounters {
    /// Of the interface `name` in the namespace of the calling thread.
    pub(crate) fn read(name: &str) -> Result<Self> {
        let text = std::fs::read_to_string("/proc/thread-self/net/dev")?;
        let line = text.lines().find_map(|line| {
            let (interface, counters) = line.split_once(':')?;
            (interface.trim() == name).then_some(counters)
        });
        let line = line.with_context(|| format!("no interface {name}"))?;
        let columns: Vec<u64> = line
            .split_whitespace()
            .map(str::parse)
            .collect::<Result<_, _>>()?;
        // Eight columns for each direction, which begin with bytes, packets, errors and drops.
        anyhow::ensure!(columns.len() == 16, "counters of {name}: {line}");
        Ok(InterfaceCounters {
            rx_packets: columns[1],
            rx_dropped: columns[3],
            tx_packets: columns[9],
            tx_dropped: columns[11],
        })
    }
}

/// Ticks in which one of the host's processors was busy, but for what yields to everything else.
pub(crate) fn host_busy_ticks(cpu: usize) -> Result<u64> {
    let text = std::fs::read_to_string("/proc/stat")?;
    let head = format!("cpu{cpu} ");
    let line = text.lines().find_map(|line| line.strip_prefix(&head));
    let times: Vec<u64> = line
        .context("no such processor in /proc/stat")?
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    // user, nice, system, idle, iowait, irq, softirq
    Ok([0, 2, 5, 6].iter().filter_map(|&at| times.get(at)).sum())
}
