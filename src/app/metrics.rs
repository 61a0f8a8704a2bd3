//! The counters as one line of JSON, for whoever sends `SIGUSR1`.
//!
//! One object a queue pair. Names follow the words of the rules: a *frame* is what was on the
//! wire, a *packet* is what the guest got.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::logging;
use super::workers::Workers;
use crate::device::{NotifyStats, TxQueueStats};
use crate::gro::{Bail, DropReason, FlushReason, GroStats};
use crate::sys::clock;
use crate::worker::{PairStats, ReceiveStats, TransmitStats};

/// How long all threads together may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// Prints the counters of all queue pairs on standard error; `null` for a pair whose thread does
/// not answer.
pub(super) fn print(workers: &Workers) {
    let deadline = clock::now() + PATIENCE;
    let pairs: Vec<Value> = workers
        .stats(|| deadline - clock::now())
        .map(|(worker, stats)| stats.map_or(Value::Null, |stats| pair(worker, &stats)))
        .collect();
    let line = json!({ "queue_pairs": pairs });
    logging::print(&format!("{line}\n"));
}

fn pair(worker: usize, stats: &PairStats) -> Value {
    json!({
        "worker": worker,
        "rx": receive(&stats.receive),
        "tx": transmit(&stats.transmit),
        "uplink": {
            "rx_truncated": stats.uplink.rx_truncated,
            "rx_errors": stats.uplink.rx_errors,
            "rx_discarded": stats.uplink.rx_discarded,
            "tx_lost": stats.uplink.tx_lost,
            "rx_out_of_step": stats.uplink.rx_out_of_step,
            "connects": stats.uplink.connects,
            "rx_ring_full": stats.uplink.rx_ring_full,
            "rx_too_long": stats.uplink.rx_too_long,
            "rx_unfinished": stats.uplink.rx_unfinished,
            "rx_steer_full": stats.uplink.rx_steer_full,
        },
        "trace": { "packets": stats.trace.packets, "lost": stats.trace.lost },
        "squeezed": stats.squeezed,
        "internal_errors": stats.internal_errors,
    })
}

fn receive(stats: &ReceiveStats) -> Value {
    json!({
        "gro": gro(&stats.gro),
        "frames": stats.frames,
        "packets": stats.ring.packets,
        "bytes": stats.ring.bytes,
        "buffers": stats.ring.buffers,
        "bad_chains": stats.ring.bad_chains,
        "spoilt_chains": stats.ring.spoilt_chains,
        "buffer_waits": stats.buffer_waits,
        "polls": stats.polls,
        "hand_overs": stats.hand_overs,
        "pool_empty": stats.pool_empty,
        "pool_in_use": stats.pool_in_use,
        "ring_lent": stats.ring_lent,
        "resegmented": stats.resegmented,
        "dropped": {
            "above_mtu": stats.above_mtu,
            "at_stop": stats.dropped_at_stop,
            "too_big": stats.dropped_too_big,
        },
        "notifications": notify(stats.ring.notify),
    })
}

fn gro(stats: &GroStats) -> Value {
    let bails = Bail::all().map(|bail| (bail.name(), stats.bailed(bail)));
    let flushes = FlushReason::all().map(|reason| (reason.name(), stats.completed(reason)));
    let drops = DropReason::ALL.map(|reason| (reason.name(), stats.dropped(reason)));
    json!({
        "frames": stats.frames,
        "bytes": stats.bytes,
        "merged": stats.merged,
        "held": stats.held,
        "normal": stats.normal,
        "bypassed": stats.bypassed,
        "host_gso": stats.host_gso,
        "super_frames": stats.super_frames,
        "super_frame_segs": stats.super_frame_segs,
        "bailed": nonzero(bails),
        "completed": nonzero(flushes),
        "dropped": nonzero(drops.into_iter()),
    })
}

fn transmit(stats: &TransmitStats) -> Value {
    json!({
        "frames": stats.frames,
        "completed_frames": stats.ring.frames,
        "completed_bytes": stats.ring.bytes,
        "copied": stats.ring.copied,
        "drains": stats.drains,
        "bulks": stats.bulks,
        "bulks_ended": {
            "packets": stats.bulks_ended.packets,
            "bytes": stats.bulks_ended.bytes,
            "gso": stats.bulks_ended.gso,
            "quota": stats.bulks_ended.quota,
        },
        "left_over": stats.left_over,
        "segmented": stats.segmented,
        "segments": stats.segments,
        "checksums_finished": stats.checksums_finished,
        "uplink_full": stats.uplink_full,
        "uplink_no_memory": stats.uplink_no_memory,
        "limit_waits": stats.limit_waits,
        "byte_limit": stats.byte_limit,
        "dropped": {
            "refused_by_host": {
                "invalid": stats.refused.invalid,
                "too_long": stats.refused.too_long,
                "other": stats.refused.other,
            },
            "misfit": stats.dropped_misfit,
            "link_down": stats.dropped_down,
            "ring_disabled": stats.dropped_disabled,
            "bad_frame": bad_frames(&stats.ring),
        },
        "notifications": notify(stats.ring.notify),
    })
}

fn bad_frames(stats: &TxQueueStats) -> Value {
    nonzero(
        stats
            .drops
            .iter()
            .map(|(reason, count)| (reason.name(), count)),
    )
}

fn notify(stats: NotifyStats) -> Value {
    json!({ "sent": stats.sent, "suppressed": stats.suppressed })
}

/// An object of those counters that ever counted.
fn nonzero(counters: impl Iterator<Item = (&'static str, u64)>) -> Value {
    let counters = counters.filter(|(_, count)| *count > 0);
    Value::Object(
        counters
            .map(|(name, count)| (name.to_owned(), count.into()))
            .collect::<Map<_, _>>(),
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::device::TxDrop;

    /// The paths of all values that are no objects, with dots.
    fn add_paths(value: &Value, path: &str, paths: &mut BTreeSet<String>) {
        let Value::Object(map) = value else {
            paths.insert(path.to_owned());
            return;
        };
        for (key, value) in map {
            let dot = if path.is_empty() { "" } else { "." };
            add_paths(value, &format!("{path}{dot}{key}"), paths);
        }
    }

    #[test]
    fn every_counter_is_explained() {
        let mut printed = BTreeSet::new();
        add_paths(&pair(0, &PairStats::default()), "", &mut printed);
        // Objects of reasons, empty as yet.
        let mut reasons = |at: &str, names: Vec<&str>| {
            assert!(!names.is_empty());
            printed.extend(names.iter().map(|name| format!("{at}.{name}")));
        };
        reasons("rx.gro.bailed", Bail::all().map(Bail::name).collect());
        let completed = FlushReason::all().map(FlushReason::name);
        reasons("rx.gro.completed", completed.collect());
        reasons(
            "rx.gro.dropped",
            DropReason::ALL.map(DropReason::name).into(),
        );
        reasons("tx.dropped.bad_frame", TxDrop::ALL.map(TxDrop::name).into());

        let table = include_str!("../../docs/counters.md").lines();
        let keys = table.filter_map(|line| line.strip_prefix("| `")?.split('`').next());
        let explained: BTreeSet<_> = keys.map(str::to_owned).collect();
        assert_eq!(explained, printed);
    }
}
