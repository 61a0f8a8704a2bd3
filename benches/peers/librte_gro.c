/*
 * Times DPDK's librte_gro over the frames of a file.
 *
 *   librte_gro EAL-OPTIONS -- FRAMES
 *
 * FRAMES is a list of Ethernet frames, each after its length (32 bits, little-endian). All have the
 * same length, one protocol, and the same bytes after the first HEADERS; main.rs writes it.
 *
 * Each line of standard input, `light BURST` or `heavy BURST`, runs a turn of rounds and is answered
 * by a line `NANOSECONDS PACKETS`: the median time of a round, and the packets it delivered.
 *
 * Measured is: librte_gro over all frames of the round in bursts, and the return of what it delivers
 * to the mempool. Not measured is what a driver does: taking mbufs from the mempool, header bytes,
 * lengths and packet type.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <rte_common.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_gro.h>
#include <rte_mbuf.h>
#include <rte_net.h>

/* Bytes that differ between the frames and are written anew for each round: two cache lines. */
#define HEADERS 128u
/* The biggest cache a mempool can have, and the smallest pool that may have it. */
#define CACHE ((unsigned)RTE_MEMPOOL_CACHE_MAX_SIZE)
#define POOL_MIN (CACHE * 3 / 2)
#define MAX_ROUNDS 100000u
#define MIN_ROUNDS 9u
#define TURN_NS 50000000ull
#define WARM_UP_NS 5000000ull

/* What a driver knows about a frame. */
struct frame {
	const uint8_t *bytes;
	uint32_t packet_type;
	struct rte_net_hdr_lens lens;
};

struct traffic {
	struct frame *frames;
	unsigned count;
	unsigned len;
};

struct bench {
	struct traffic traffic;
	struct rte_mempool *pool;
	struct rte_gro_param param;
	void *ctx;
	struct rte_mbuf **in;
	struct rte_mbuf **out;
};

typedef unsigned round_fn(struct bench *bench, unsigned burst);

static void fail(const char *what)
{
	fprintf(stderr, "librte_gro: %s\n", what);
	exit(1);
}

static void *allocate(size_t count, size_t size)
{
	void *memory = calloc(count, size);

	if (memory == NULL)
		fail("no memory");
	return memory;
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint8_t *read_file(const char *path, size_t *len)
{
	FILE *file = fopen(path, "rb");
	uint8_t *bytes;
	long end;

	if (file == NULL || fseek(file, 0, SEEK_END) != 0 || (end = ftell(file)) < 0)
		fail("cannot read the frames");
	rewind(file);
	bytes = allocate((size_t)end, 1);
	if (fread(bytes, 1, (size_t)end, file) != (size_t)end)
		fail("cannot read the frames");
	fclose(file);
	*len = (size_t)end;
	return bytes;
}

static uint32_t read_len(const uint8_t *at)
{
	return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/* The bytes stay allocated; the frames point into them. */
static struct traffic load(const char *path)
{
	struct traffic traffic = {0};
	size_t len;
	const uint8_t *bytes = read_file(path, &len);
	const uint8_t *first = bytes + 4;

	if (len < 4)
		fail("no frames");
	traffic.len = read_len(bytes);
	if (traffic.len == 0 || len % (4 + (size_t)traffic.len) != 0)
		fail("frames of different lengths");
	traffic.count = (unsigned)(len / (4 + (size_t)traffic.len));
	traffic.frames = allocate(traffic.count, sizeof(*traffic.frames));
	for (unsigned i = 0; i < traffic.count; i++) {
		const uint8_t *at = bytes + (size_t)i * (4 + (size_t)traffic.len);

		if (read_len(at) != traffic.len)
			fail("frames of different lengths");
		if (traffic.len > HEADERS &&
		    memcmp(at + 4 + HEADERS, first + HEADERS, traffic.len - HEADERS) != 0)
			fail("frames of different payload");
		traffic.frames[i].bytes = at + 4;
	}
	return traffic;
}

static void fill_all(struct rte_mempool *pool, void *opaque, void *mbuf, unsigned index)
{
	const struct traffic *traffic = opaque;

	(void)pool;
	(void)index;
	memcpy(rte_pktmbuf_mtod((struct rte_mbuf *)mbuf, uint8_t *), traffic->frames[0].bytes,
	       traffic->len);
}

/* Takes mbufs for all frames and fills them as a driver does, but for payload, which is there. */
static void receive(struct bench *bench)
{
	const struct traffic *traffic = &bench->traffic;

	if (rte_pktmbuf_alloc_bulk(bench->pool, bench->in, traffic->count) != 0)
		fail("mbufs were lost");
	for (unsigned i = 0; i < traffic->count; i++) {
		const struct frame *frame = &traffic->frames[i];
		struct rte_mbuf *mbuf = bench->in[i];

		memcpy(rte_pktmbuf_mtod(mbuf, uint8_t *), frame->bytes, RTE_MIN(HEADERS, traffic->len));
		mbuf->data_len = (uint16_t)traffic->len;
		mbuf->pkt_len = traffic->len;
		mbuf->packet_type = frame->packet_type;
		mbuf->l2_len = frame->lens.l2_len;
		mbuf->l3_len = frame->lens.l3_len;
		mbuf->l4_len = frame->lens.l4_len;
	}
}

/* The parser looks at an mbuf, so one is filled for each frame. */
static void classify(struct bench *bench)
{
	receive(bench);
	for (unsigned i = 0; i < bench->traffic.count; i++) {
		struct frame *frame = &bench->traffic.frames[i];

		frame->packet_type = rte_net_get_ptype(bench->in[i], &frame->lens, RTE_PTYPE_ALL_MASK);
	}
	rte_pktmbuf_free_bulk(bench->in, bench->traffic.count);
}

/* Merges within a burst only; what it returns is delivered. */
static unsigned light(struct bench *bench, unsigned burst)
{
	unsigned packets = 0;

	for (unsigned i = 0; i < bench->traffic.count; i += burst) {
		struct rte_mbuf **frames = bench->in + i;
		unsigned left = RTE_MIN(burst, bench->traffic.count - i);

		left = rte_gro_reassemble_burst(frames, (uint16_t)left, &bench->param);
		rte_pktmbuf_free_bulk(frames, left);
		packets += left;
	}
	return packets;
}

/* Merges across bursts; frames it doesn't want are delivered at once, the others at the end. */
static unsigned heavy(struct bench *bench, unsigned burst)
{
	unsigned packets = 0;
	uint16_t flushed;

	for (unsigned i = 0; i < bench->traffic.count; i += burst) {
		struct rte_mbuf **frames = bench->in + i;
		unsigned left = RTE_MIN(burst, bench->traffic.count - i);

		left = rte_gro_reassemble(frames, (uint16_t)left, bench->ctx);
		rte_pktmbuf_free_bulk(frames, left);
		packets += left;
	}
	flushed = rte_gro_timeout_flush(bench->ctx, 0, bench->param.gro_types, bench->out,
					(uint16_t)bench->traffic.count);
	rte_pktmbuf_free_bulk(bench->out, flushed);
	return packets + flushed;
}

static int by_size(const void *left, const void *right)
{
	uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;

	return (a > b) - (a < b);
}

/* Runs rounds until the time is up; the median time of one, in `packets` what it delivered. */
static uint64_t turn(struct bench *bench, round_fn *round, unsigned burst, uint64_t ns,
		     unsigned *packets)
{
	static uint64_t times[MAX_ROUNDS];
	uint64_t end = now_ns() + ns;
	unsigned rounds = 0;

	while (rounds < MAX_ROUNDS && (rounds < MIN_ROUNDS || now_ns() < end)) {
		uint64_t began;

		receive(bench);
		began = now_ns();
		*packets = round(bench, burst);
		times[rounds++] = now_ns() - began;
	}
	qsort(times, rounds, sizeof(*times), by_size);
	return times[rounds / 2];
}

int main(int argc, char **argv)
{
	struct bench bench = {0};
	char mode[8];
	unsigned burst;
	int used = rte_eal_init(argc, argv);

	if (used < 0)
		fail(rte_strerror(rte_errno));
	if (argc - used != 2)
		fail("usage: librte_gro EAL-OPTIONS -- FRAMES");
	bench.traffic = load(argv[used + 1]);

	/* The cheapest kind of pool there is: one thread, with a cache. */
	bench.pool = rte_pktmbuf_pool_create_by_ops("frames", RTE_MAX(POOL_MIN, bench.traffic.count),
						    CACHE, 0, RTE_MBUF_DEFAULT_BUF_SIZE,
						    SOCKET_ID_ANY, "ring_sp_sc");
	if (bench.pool == NULL)
		fail(rte_strerror(rte_errno));
	rte_mempool_obj_iter(bench.pool, fill_all, &bench.traffic);
	bench.in = allocate(bench.traffic.count, sizeof(*bench.in));
	bench.out = allocate(bench.traffic.count, sizeof(*bench.out));
	classify(&bench);

	/* Only what can apply: each type more costs a look at each frame. */
	bench.param.gro_types =
		(bench.traffic.frames[0].packet_type & RTE_PTYPE_L4_MASK) == RTE_PTYPE_L4_UDP
			? RTE_GRO_UDP_IPV4
			: RTE_GRO_TCP_IPV4;
	bench.param.max_flow_num = 1024;
	bench.param.max_item_per_flow = 64;
	bench.ctx = rte_gro_ctx_create(&bench.param);
	if (bench.ctx == NULL)
		fail("no context");

	while (scanf("%7s %u", mode, &burst) == 2) {
		round_fn *round = strcmp(mode, "heavy") == 0 ? heavy : light;
		unsigned packets;
		uint64_t ns;

		if (burst == 0 || burst > RTE_GRO_MAX_BURST_ITEM_NUM)
			fail("a burst has 1 to 128 frames");
		turn(&bench, round, burst, WARM_UP_NS, &packets);
		ns = turn(&bench, round, burst, TURN_NS, &packets);
		if (rte_mempool_avail_count(bench.pool) != bench.pool->size)
			fail("mbufs were lost");
		printf("%llu %u\n", (unsigned long long)ns, packets);
		fflush(stdout);
	}
	return 0;
}
