//! What is read off a measurement, by name and unit.

use crate::part::Measure;

const fn measure(name: &'static str, unit: &'static str, digits: usize) -> Measure {
    Measure {
        name,
        unit,
        digits,
        is_plotted: true,
    }
}

/// Something that shall be 0.
const fn counter(name: &'static str) -> Measure {
    Measure {
        name,
        unit: "",
        digits: 0,
        is_plotted: false,
    }
}

/// Of something less important than the rest.
const fn aside(mut measure: Measure) -> Measure {
    measure.is_plotted = false;
    measure
}

/// Payload that arrived.
pub(crate) const THROUGHPUT: Measure = measure("throughput", "Mbit/s", 0);
/// The daemon's or, for QEMU's own device, that of its threads but the guest's processors.
pub(crate) const BACKEND_PER_KB: Measure = measure("backend CPU per KB", "us", 3);
pub(crate) const BACKEND_PER_FRAME: Measure = measure("backend CPU per frame", "us", 3);
/// Of all but the guest's processors: back end, kernel, receiver.
pub(crate) const HOST_PER_KB: Measure = measure("host CPU per KB", "us", 3);
/// By the guest's own account, in ticks of 10 ms.
pub(crate) const GUEST_PER_KB: Measure = measure("guest CPU per KB", "us", 3);
/// Of the guest's processors, by the host's account.
pub(crate) const VCPU_PER_KB: Measure = measure("vCPU per KB", "us", 3);
pub(crate) const VCPU_PER_TRANSACTION: Measure = aside(measure("vCPU per transaction", "us", 1));
pub(crate) const BACKEND_PER_TRANSACTION: Measure =
    aside(measure("backend CPU per transaction", "us", 2));
pub(crate) const VCPU_PER_FRAME: Measure = aside(measure("vCPU per frame", "us", 3));
/// Interrupts that the daemon sent for the guest's transmit queue.
pub(crate) const NOTIFICATIONS: Measure = measure("notifications per frame", "", 4);
/// Of what the guest handed over or got, super-frames included.
pub(crate) const BYTES_PER_PACKET: Measure = aside(measure("bytes per packet", "", 0));
pub(crate) const FRAMES: Measure = measure("frames", "1000/s", 1);
pub(crate) const CALLS: Measure = measure("system calls per frame", "", 3);
pub(crate) const SENDS: Measure = aside(measure("sending calls per frame", "", 3));
pub(crate) const WAITS: Measure = aside(measure("waiting calls per frame", "", 3));
pub(crate) const P50: Measure = measure("p50", "us", 0);
pub(crate) const P90: Measure = measure("p90", "us", 0);
pub(crate) const P99: Measure = measure("p99", "us", 0);
pub(crate) const TRANSACTIONS: Measure = aside(measure("transactions", "/s", 0));
/// Of the stream beside.
pub(crate) const BESIDE: Measure = aside(measure("stream beside", "Mbit/s", 1));
/// Frames that an uplink had no room for at first.
pub(crate) const UPLINK_FULL: Measure = counter("uplink full");
/// Segments sent again.
pub(crate) const RETRANSMISSIONS: Measure = counter("retransmissions");
/// Segments that reached the guest before an earlier one.
pub(crate) const OFO_QUEUE: Measure = counter("TCPOFOQueue");
/// Frames that the guest's device had no room for.
pub(crate) const DROPPED: Measure = counter("dropped by the guest");

/// For an experiment that is about a counter.
pub(crate) const fn shown(mut measure: Measure) -> Measure {
    measure.is_plotted = true;
    measure
}
