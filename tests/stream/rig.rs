//! One queue of a stream, and frames that tell their number.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vhost_user_gro::uplink::stream::Stream;
use vhost_user_gro::uplink::{
    Flushed, FramePool, RecvEnd, RecvError, RxFrame, SendError, TxFrame, Uplink, UplinkQueue,
    UplinkStats,
};
use vhost_user_gro::wire::VnetHdr;

/// Long enough for anything that happens at all.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A queue and what reading it needs.
pub(crate) struct Rig {
    pub(crate) queue: Box<dyn UplinkQueue>,
    pub(crate) pool: FramePool,
}

impl Rig {
    pub(crate) fn new(mut stream: Stream) -> Self {
        Self {
            queue: stream.take_queues().pop().unwrap(),
            pool: FramePool::new(64),
        }
    }

    /// A stream over one half of a socket pair, and the other half.
    pub(crate) fn pair() -> (Self, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Self::new(Stream::given(ours.into()).unwrap()), theirs)
    }

    pub(crate) fn at(address: &str) -> Self {
        Self::new(Stream::open(&address.parse().unwrap(), true).unwrap())
    }

    /// One call for frames.
    pub(crate) fn recv(&mut self) -> (Vec<Vec<u8>>, Result<RecvEnd, RecvError>) {
        let mut out = Vec::new();
        let end = self.queue.recv_batch(&self.pool, 64, &mut out);
        let bytes = |received: &RxFrame| {
            assert_eq!(received.meta.vnet, VnetHdr::PLAIN, "nobody vouches for it");
            received.frame.as_ref().to_vec()
        };
        (out.iter().map(bytes).collect(), end)
    }

    /// Calls for frames, as its descriptor says, until there are `count`, or an error.
    pub(crate) fn recv_many(&mut self, count: usize) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        while frames.len() < count {
            self.wait(PollFlags::IN);
            frames.extend(self.recv().0);
        }
        frames
    }

    /// Waits for the descriptor.
    pub(crate) fn wait(&self, flags: PollFlags) {
        let timeout = Timespec::try_from(PATIENCE).unwrap();
        let mut fds = [PollFd::from_borrowed_fd(self.queue.fd(), flags)];
        assert_ne!(poll(&mut fds, Some(&timeout)).unwrap(), 0, "nothing comes");
    }

    /// Serves the queue until it is, or is not, connected.
    pub(crate) fn until_carrier(&mut self, carrier: bool) {
        while self.queue.carrier() != Some(carrier) {
            self.wait(PollFlags::IN);
            assert!(self.recv().0.is_empty());
        }
    }

    pub(crate) fn send(&mut self, frame: &[u8]) -> Result<(), SendError> {
        self.queue.send(&TxFrame {
            vnet: VnetHdr::PLAIN,
            head: frame,
            rest: &[],
        })
    }

    /// Sends frames as one batch after the other; what does not fit waits.
    pub(crate) fn send_all(&mut self, frames: &[Vec<u8>]) {
        for frame in frames {
            while let Err(error) = self.send(frame) {
                assert!(matches!(error, SendError::Full), "{error}");
                self.wait(PollFlags::OUT);
            }
        }
        while self.queue.flush().unwrap() == Flushed::Partly {
            self.wait(PollFlags::OUT);
        }
    }

    pub(crate) fn stats(&self) -> UplinkStats {
        self.queue.stats()
    }
}

/// A frame of `len` bytes that tells its number.
pub(crate) fn numbered(number: u32, len: usize) -> Vec<u8> {
    let mut frame = vec![u8::try_from(number % 251).unwrap(); len];
    frame[..4].copy_from_slice(&number.to_be_bytes());
    frame
}

/// As the frames travel.
pub(crate) fn stream_of(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for frame in frames {
        bytes.extend(u32::try_from(frame.len()).unwrap().to_be_bytes());
        bytes.extend(frame);
    }
    bytes
}
