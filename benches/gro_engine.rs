//! What the engine costs per frame: ids are `gro/<traffic>/<frames>/<setting>`.
//!
//! `vouched` and `verified` say who checked the transport checksum: the host, or the engine.
//! `merge_off` is the same round with merging switched off, `layout` the parser alone over the same
//! frames. The yardsticks are a copy and a checksum of the payload of one frame, in cache. Making
//! the frames is not measured; reading the clock is, some 0.5 ns of each frame when a round has 64.

mod round;

use std::hint::black_box;
use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{
    BatchSize, BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main,
};
use vhost_user_gro::wire::checksum::Sum;
use vhost_user_gro::wire::layout;

use round::{Round, Setting, Source, TRAFFIC, Traffic};

const SETTINGS: [(&str, Setting); 3] = [
    ("vouched", Setting::Vouched),
    ("verified", Setting::Verified),
    ("merge_off", Setting::MergeOff),
];

fn bench_rounds(group: &mut BenchmarkGroup<'_, WallTime>, traffic: &Traffic) {
    let source = Source::new(traffic);
    for (name, setting) in SETTINGS {
        let mut round = Round::new(setting);
        group.bench_function(format!("{}/{}/{name}", traffic.name, traffic.size), |b| {
            b.iter_batched_ref(
                || source.batch(),
                |frames| round.run(frames),
                BatchSize::PerIteration,
            );
        });
    }
    group.bench_function(format!("{}/{}/layout", traffic.name, traffic.size), |b| {
        b.iter_batched_ref(
            || source.batch(),
            |frames| {
                for frame in frames {
                    black_box(layout::parse(black_box(frame.as_ref())).is_ok());
                }
            },
            BatchSize::PerIteration,
        );
    });
}

fn bench_yardsticks(group: &mut BenchmarkGroup<'_, WallTime>) {
    let payload = vec![0x5a; 1448];
    let mut copy = payload.clone();
    group.throughput(Throughput::Elements(1));
    group.bench_function("yardstick/1x1448B/copy", |b| {
        b.iter(|| {
            copy.copy_from_slice(black_box(&payload));
            black_box(&mut copy);
        });
    });
    group.bench_function("yardstick/1x1448B/checksum", |b| {
        b.iter(|| Sum::of(black_box(&payload)).fold());
    });
}

fn gro(c: &mut Criterion) {
    let mut group = c.benchmark_group("gro");
    group
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .sample_size(50);
    for traffic in &TRAFFIC {
        group.throughput(Throughput::Elements(traffic.frames as u64));
        bench_rounds(&mut group, traffic);
    }
    bench_yardsticks(&mut group);
    group.finish();
}

criterion_group!(benches, gro);
criterion_main!(benches);
