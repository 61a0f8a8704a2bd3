//! Sequences of frames and poll events through engine and poll model, with the invariants as
//! assertions.
//!
//! Input: [`Tunables`] (8 bytes), then [`Step`]s until the end.

use std::time::Duration;

use vhost_user_gro::gro::{GroConfig, GroTypes, HashMode};
use vhost_user_gro::napi::NapiConfig;
use vhost_user_gro::wire::vnet_hdr::{F_DATA_VALID, F_NEEDS_CSUM, GSO_NONE, VNET_HDR_LEN};
use vhost_user_gro::wire::{RxMeta, VnetHdr};

use super::input::Input;
use super::layout::is_beyond_second_opinion;
use crate::support::cut::{Headers, word};
use crate::support::invariants::{Flow, Record, Recorder, Setup};
use crate::support::packet::{Built, Checksum};

/// Most frames, most bytes of them and most steps of one input, which ends there, so that runs stay
/// short. The bytes are more than a packet may have.
const MAX_FRAMES: usize = 100;
const MAX_BYTES: usize = 80 << 10;
const MAX_STEPS: usize = 300;

pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let Some(tunables) = input.array().map(Tunables) else {
        return;
    };
    let record = drive(tunables, input);
    record.check().unwrap();
    // INV-11: nothing depends on addresses in memory or the time of day.
    if tunables.is_run_twice() {
        assert!(drive(tunables, input).delivered == record.delivered);
    }
}

/// The tunables and features of a run; all bytes 0 are the defaults and a guest that takes all.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tunables(pub [u8; 8]);

impl Tunables {
    /// What a bit of byte 0 takes away from the guest, or switches.
    fn has(self, bit: u8) -> bool {
        self.0[0] & 1 << bit == 0
    }

    fn is_run_twice(self) -> bool {
        self.0[7] & 1 != 0
    }

    fn setup(self) -> Setup {
        let timeouts = [20_000, 0, 1, 200_000, 3_000_000];
        let batches = [8, 1, 64, 1024];
        let [_, timeout, defer, batch, size, segs, ..] = self.0;
        let pick = |byte: u8, len: usize| usize::from(byte) % len;
        Setup {
            gro: GroConfig {
                gro_normal_batch: batches[pick(batch, batches.len())],
                gro_max_size: if size == 0 {
                    65535
                } else {
                    1500 + u32::from(size) * 251
                },
                gro_max_segs: if segs == 0 {
                    65535
                } else {
                    2 + u32::from(segs) % 64
                },
                udp_gro: self.has(6),
                hash_mode: if self.has(7) {
                    HashMode::Flow
                } else {
                    HashMode::Zero
                },
                ..GroConfig::default()
            },
            napi: NapiConfig {
                gro_flush_timeout: Duration::from_nanos(timeouts[pick(timeout, timeouts.len())]),
                napi_defer_hard_irqs: u32::from(defer % 3),
                ..NapiConfig::default()
            },
            types: GroTypes {
                csum: self.has(0),
                tcp4: self.has(1),
                tcp6: self.has(2),
                ecn: self.has(3),
                udp4: self.has(4),
                udp6: self.has(5),
            },
        }
    }
}

/// What happens next, by number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// 0: a frame, and then how its source describes it.
    Frame { meta: Meta, bytes: Vec<u8> },
    /// 1: frames that follow on an earlier one as its sender would go on.
    Next {
        /// Which one, modulo the number of frames so far.
        of: u8,
        /// How many, less one, modulo 64.
        more: u8,
        /// How their payload and headers differ.
        change: Change,
    },
    /// 2: a poll ends before its budget.
    PollEnd,
    /// 3: a poll ends with its budget.
    BudgetEnd,
    /// 4: this many nanoseconds pass.
    Pass(u32),
    /// 5: the queue is stopped.
    Stop,
}

/// What a source says about a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Bit 0: a host header follows. Bit 1: checksums are put right, as that header wants them.
    /// Bits 2 and 3: the merge mark.
    pub bits: u8,
    pub host: VnetHdr,
}

/// How a frame differs from one that follows on plainly.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Bit 0: checksums stay as they are. Bit 1: only this frame, not those that follow on it.
    /// Bit 2: a payload length follows. Bits 4 to 6: number of bytes that are changed.
    pub bits: u8,
    pub payload_len: u16,
    /// Offset of a byte, and what is flipped in it.
    pub flips: Vec<(u8, u8)>,
}

impl Step {
    fn decode(input: &mut Input<'_>) -> Option<Self> {
        Some(match input.byte()? % 6 {
            0 => {
                let meta = Meta::decode(input)?;
                let len = input.word()?;
                let bytes = input.take(len.into()).to_vec();
                Self::Frame { meta, bytes }
            }
            1 => Self::Next {
                of: input.byte()?,
                more: input.byte()? % 64,
                change: Change::decode(input)?,
            },
            2 => Self::PollEnd,
            3 => Self::BudgetEnd,
            4 => Self::Pass(input.long()?),
            _ => Self::Stop,
        })
    }

    /// The inverse, for seeds.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Frame { meta, bytes } => {
                out.extend([0, meta.bits]);
                if meta.bits & 1 != 0 {
                    out.extend(meta.host.encode());
                }
                let len = u16::try_from(bytes.len()).unwrap();
                out.extend(len.to_le_bytes());
                out.extend(bytes);
            }
            Self::Next { of, more, change } => {
                out.extend([1, *of, *more, change.bits]);
                if change.bits & 4 != 0 {
                    out.extend(change.payload_len.to_le_bytes());
                }
                out.extend(change.flips.iter().flat_map(|(at, bits)| [at, bits]));
            }
            Self::PollEnd => out.push(2),
            Self::BudgetEnd => out.push(3),
            Self::Pass(nanos) => {
                out.push(4);
                out.extend(nanos.to_le_bytes());
            }
            Self::Stop => out.push(5),
        }
    }
}

impl Meta {
    fn decode(input: &mut Input<'_>) -> Option<Self> {
        let bits = input.byte()?;
        let mut host = VnetHdr::default();
        if bits & 1 != 0 {
            host = VnetHdr::decode(&input.array::<VNET_HDR_LEN>()?);
        }
        Some(Self { bits, host })
    }

    fn mark(self) -> u64 {
        u64::from(self.bits >> 2 & 3)
    }
}

impl Change {
    fn decode(input: &mut Input<'_>) -> Option<Self> {
        let bits = input.byte()?;
        let payload_len = if bits & 4 != 0 { input.word()? } else { 0 };
        let flips = (0..bits >> 4 & 7).map(|_| Some((input.byte()?, input.byte()?)));
        Some(Self {
            bits,
            payload_len,
            flips: flips.collect::<Option<_>>()?,
        })
    }
}

/// Does all steps of an input, up to the limits.
fn drive(tunables: Tunables, mut input: Input<'_>) -> Record {
    let mut source = Source {
        recorder: Recorder::new(tunables.setup()),
        sent: Vec::new(),
        frames: 0,
        bytes: 0,
        is_over: false,
    };
    for _ in 0..MAX_STEPS {
        let Some(step) = Step::decode(&mut input).filter(|_| !source.is_over) else {
            break;
        };
        source.step(step).unwrap();
    }
    source.recorder.finish().unwrap()
}

/// Where the frames of a run come from.
struct Source {
    recorder: Recorder,
    /// The last frame of each that was given whole.
    sent: Vec<(Meta, Vec<u8>)>,
    frames: usize,
    bytes: usize,
    /// The limits are reached.
    is_over: bool,
}

impl Source {
    fn step(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Frame { meta, mut bytes } => {
                if meta.bits & 2 != 0 {
                    put_checksums_right(&mut bytes, &meta.host);
                }
                self.sent.push((meta, bytes.clone()));
                self.send(meta, bytes)
            }
            Step::Next { of, more, change } => {
                if self.sent.is_empty() {
                    return Ok(());
                }
                let of = usize::from(of) % self.sent.len();
                for _ in 0..=more {
                    if self.is_over {
                        break;
                    }
                    self.send_next(of, &change)?;
                }
                Ok(())
            }
            Step::PollEnd => self.recorder.end(false),
            Step::BudgetEnd => self.recorder.end(true),
            Step::Pass(nanos) => self.recorder.pass(Duration::from_nanos(nanos.into())),
            Step::Stop => self.recorder.stop(),
        }
    }

    fn send_next(&mut self, of: usize, change: &Change) -> Result<(), String> {
        let (meta, mut bytes) = self.sent[of].clone();
        advance(&mut bytes);
        if change.bits & 2 != 0 {
            self.sent[of].1.clone_from(&bytes);
        }
        if change.bits & 4 != 0 {
            set_payload_len(&mut bytes, change.payload_len.into());
        }
        for &(at, bits) in &change.flips {
            if let Some(byte) = bytes.get_mut(usize::from(at)) {
                *byte ^= bits;
            }
        }
        if change.bits & 1 == 0 {
            put_checksums_right(&mut bytes, &meta.host);
        }
        if change.bits & 2 == 0 {
            self.sent[of].1.clone_from(&bytes);
        }
        self.send(meta, bytes)
    }

    fn send(&mut self, meta: Meta, bytes: Vec<u8>) -> Result<(), String> {
        self.frames += 1;
        self.bytes += bytes.len();
        self.is_over = self.frames > MAX_FRAMES || self.bytes > MAX_BYTES;
        if self.is_over || is_beyond_second_opinion(&bytes) {
            return Ok(());
        }
        let flow = Flow::of(&bytes);
        self.recorder.frame(built(meta, bytes), flow).map(drop)
    }
}

/// A frame, described as the checks need it.
fn built(meta: Meta, bytes: Vec<u8>) -> Built {
    let headers = Headers::of(&bytes).ok();
    let mut host = meta.host;
    // What the host merged has a partial checksum, and the second opinion must be able to cut it.
    if host.gso_type != GSO_NONE {
        host.flags |= F_NEEDS_CSUM;
        if headers.is_none() {
            host.gso_type = GSO_NONE;
        }
    }
    let is_vouched_for = host.flags & (F_NEEDS_CSUM | F_DATA_VALID) != 0;
    let payload = headers.map_or(0, |headers| headers.payload);
    Built {
        meta: RxMeta {
            vnet: host,
            merge_mark: meta.mark(),
        },
        l4: headers.map_or(0, |headers| headers.l4),
        payload,
        payload_len: headers.map_or(0, |_| bytes.len() - payload),
        // Of a checksum that nobody looks at anything may be left.
        csum: if is_vouched_for {
            Checksum::Partial
        } else {
            Checksum::Right
        },
        protocol: headers.map_or(0, |headers| if headers.is_tcp { 6 } else { 17 }),
        bytes,
    }
}

/// Makes a frame the next one of its sender: sequence number and identification go on.
fn advance(bytes: &mut [u8]) {
    let Ok(headers) = Headers::of(bytes) else {
        return;
    };
    if headers.is_ipv4 {
        let id = word(bytes, headers.l3 + 4).wrapping_add(1);
        bytes[headers.l3 + 4..headers.l3 + 6].copy_from_slice(&id.to_be_bytes());
    }
    if headers.is_tcp {
        let len = u32::try_from(bytes.len() - headers.payload).unwrap();
        let field = bytes[headers.l4 + 4..headers.l4 + 8]
            .first_chunk_mut()
            .unwrap();
        *field = u32::from_be_bytes(*field).wrapping_add(len).to_be_bytes();
    }
}

/// Gives a frame another length of payload, as far as its length fields allow.
pub fn set_payload_len(bytes: &mut Vec<u8>, len: usize) {
    let Ok(headers) = Headers::of(bytes) else {
        return;
    };
    let ip_start = if headers.is_ipv4 { 0 } else { 40 };
    let most = 65535 + ip_start + headers.l3 - headers.payload;
    bytes.resize(headers.payload + len.min(most), 0x5a);
    let end = bytes.len();
    let mut put = |at: usize, value: usize| {
        let value = u16::try_from(value).unwrap();
        bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
    };
    let field = if headers.is_ipv4 { 2 } else { 4 };
    put(headers.l3 + field, end - headers.l3 - ip_start);
    if !headers.is_tcp {
        put(headers.l4 + 4, end - headers.l4);
    }
}

/// Writes the checksums that a frame should have, as far as it has any.
fn put_checksums_right(bytes: &mut [u8], host: &VnetHdr) {
    let Ok(headers) = Headers::of(bytes) else {
        return;
    };
    if headers.is_ipv4 {
        let sum = headers.ipv4_checksum(bytes).to_be_bytes();
        bytes[headers.l3 + 10..headers.l3 + 12].copy_from_slice(&sum);
    }
    let is_partial = host.flags & F_NEEDS_CSUM != 0 && usize::from(host.csum_start) == headers.l4;
    let sum = if is_partial {
        headers.pseudo_sum(bytes)
    } else {
        headers.checksum(bytes)
    };
    let at = headers.l4 + headers.csum_offset();
    bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}
