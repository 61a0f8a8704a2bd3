//! The Internet checksum against a copy of the same bytes, the yardstick of everything here.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use vhost_user_gro::wire::checksum::Sum;

const SIZES: [usize; 5] = [20, 64, 256, 1448, 65536];

fn checksum(c: &mut Criterion) {
    let mut group = c.benchmark_group("checksum");
    for size in SIZES {
        let data: Vec<u8> = (0_u8..=255).cycle().take(size).collect();
        let mut copy = vec![0; size];
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_with_input(BenchmarkId::new("sum", size), &data, |b, data| {
            b.iter(|| Sum::of(black_box(data)).fold());
        });
        group.bench_with_input(BenchmarkId::new("copy", size), &data, |b, data| {
            b.iter(|| {
                copy.copy_from_slice(black_box(data));
                black_box(&mut copy);
            });
        });
    }
    group.finish();
}

criterion_group!(benches, checksum);
criterion_main!(benches);
