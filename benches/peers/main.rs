//! The engine and DPDK's librte_gro over the same frames, side by side in one run.
//!
//! `run.sh` builds both and starts this. A turn is some 50 ms of rounds, of which the median
//! counts. Of each kind of traffic all ways to treat it have their turn one after the other, seven
//! times, so that a machine that gets slower gets slower for both. Ratios are made turn by turn.
//!
//! Both get the frames byte for byte, in buffers from a pool whose header bytes were written just
//! before. Measured is a whole round: its frames go in, packets come out, and all buffers return to
//! their pool. Not measured is what a driver does: it takes buffers, fills them and says what it
//! knows. For librte_gro that is packet type and header lengths; the engine is told nothing and
//! parses the frame itself. Both have memory in pages of 4 KiB, and one processor. Nobody reads
//! payload but the engine where the column says `verified`.
//!
//! The engine holds packets until the end of the round, as does librte_gro's heavy mode; its light
//! mode delivers after each burst.

mod dpdk;
mod report;
#[path = "../round/mod.rs"]
mod round;
mod spread;
mod targets;
mod turn;

use std::error::Error;
use std::hint::black_box;
use std::path::{Path, PathBuf};

use vhost_user_gro::wire::checksum::Sum;
use vhost_user_gro::wire::layout;

use dpdk::Dpdk;
use report::{Row, Yardsticks};
use round::{Round, Setting, Source, TRAFFIC, Traffic};

const TURNS: usize = 7;

fn main() -> Result<(), Box<dyn Error>> {
    let Some(dir) = std::env::args_os().nth(1).filter(|dir| dir != "--bench") else {
        eprintln!("SKIPPED: needs DPDK; `make peers` fetches it");
        return Ok(());
    };
    let dir = PathBuf::from(dir);
    let version = std::fs::read_to_string(dir.join("version"))?;
    let yardsticks = measure_yardsticks();
    let rows = TRAFFIC.iter().map(|traffic| measure(traffic, &dir));
    let rows = rows.collect::<Result<Vec<_>, _>>()?;
    report::print(version.trim(), &yardsticks, &rows)?;
    Ok(())
}

fn measure(traffic: &'static Traffic, dir: &Path) -> std::io::Result<Row> {
    let source = Source::new(traffic);
    let mut dpdk = Dpdk::start(dir, &traffic.frames())?;
    let mut row = Row::new(traffic);
    let per_frame = |ns: f64| ns / traffic.frames as f64;
    for _ in 0..TURNS {
        let sides = [
            (&mut row.vouched, Setting::Vouched),
            (&mut row.verified, Setting::Verified),
            (&mut row.merge_off, Setting::MergeOff),
        ];
        for (side, setting) in sides {
            let mut round = Round::new(setting);
            let mut packets = 0;
            let ns = turn::rounds(|| source.batch(), |frames| packets = round.run(frames));
            side.push(per_frame(ns), packets);
        }
        for (mode, side) in row.modes_mut() {
            let (ns, packets) = dpdk.turn(mode)?;
            side.push(per_frame(ns), packets);
        }
        row.buffers.push(per_frame(turn::rounds(
            || source.batch(),
            |frames| frames.clear(),
        )));
        row.layout.push(per_frame(turn::rounds(
            || source.batch(),
            |frames| {
                for frame in frames {
                    black_box(layout::parse(black_box(frame.as_ref())).is_ok());
                }
            },
        )));
    }
    Ok(row)
}

fn measure_yardsticks() -> Yardsticks {
    let mut yardsticks = Yardsticks::default();
    let payload = vec![0x5a; report::PAYLOAD];
    let mut copy = payload.clone();
    for _ in 0..TURNS {
        yardsticks.clock.push(turn::rounds(|| (), |()| ()));
        yardsticks.copy.push(turn::calls(|| {
            copy.copy_from_slice(black_box(&payload));
            black_box(&mut copy);
        }));
        yardsticks.checksum.push(turn::calls(|| {
            black_box(Sum::of(black_box(&payload)).fold());
        }));
    }
    yardsticks
}
