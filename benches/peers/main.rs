//! The engine and DPDK's librte_gro over the same frames, side by side in one run.
//!
//! `run.sh` builds both and starts this. A turn is some 50 ms of rounds, of which the median counts;
//! for each kind of traffic the two take turns, so that a machine that gets slower gets slower for
//! both. Tables show median, least and most of the turns.
//!
//! Both get the frames byte for byte, in buffers from a pool whose header bytes were written just
//! before. Measured are the merging and the return of all buffers to the pool, in the whole round.
//! Not measured are taking and filling buffers, and what is told of a frame with it: the engine
//! parses it alone, librte_gro is given packet type and header lengths. Both allocate from pages of
//! 4 KiB. Payload is read by neither but where our column says `verified`.

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
    let dir = std::env::args_os().nth(1).map(PathBuf::from);
    let dir = dir.filter(|dir| dir.join("librte_gro").exists());
    let dir = dir.ok_or("started by benches/peers/run.sh, which builds what this needs")?;
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
