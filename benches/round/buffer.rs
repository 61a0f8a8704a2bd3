//! Frames in buffers that go back to their pool, as those of the daemon do.

use std::cell::RefCell;
use std::rc::Rc;

use crate::round::Traffic;

/// Bytes written anew for each round: two cache lines, longer than any header here.
const HEADERS: usize = 128;

type Pool = Rc<RefCell<Vec<Box<[u8]>>>>;

pub(crate) struct Buffer {
    bytes: Box<[u8]>,
    home: Pool,
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.home
            .borrow_mut()
            .push(core::mem::take(&mut self.bytes));
    }
}

/// Has the frames of a round ready in fresh buffers, round after round.
///
/// Only header bytes are written: payload is the same in all frames and nobody changes it. Writing
/// it too would push the headers out of the first-level cache before the round begins.
pub(crate) struct Source {
    headers: Vec<Vec<u8>>,
    pool: Pool,
}

impl Source {
    pub(crate) fn new(traffic: &Traffic) -> Self {
        let frames = traffic.frames();
        let payload = |frame: &[u8]| frame.get(HEADERS..).map(<[u8]>::to_vec);
        assert!(
            frames.iter().all(
                |frame| frame.len() == frames[0].len() && payload(frame) == payload(&frames[0])
            ),
            "frames of {} differ in more than headers",
            traffic.name
        );
        let pool = frames.iter().map(|frame| frame.clone().into()).collect();
        let headers = frames.into_iter().map(|mut frame| {
            frame.truncate(HEADERS);
            frame
        });
        Self {
            headers: headers.collect(),
            pool: Rc::new(RefCell::new(pool)),
        }
    }

    /// The frames of one round; those of the last one must have been dropped.
    pub(crate) fn batch(&self) -> Vec<Buffer> {
        let fill = |header: &Vec<u8>| {
            let bytes = self.pool.borrow_mut().pop();
            let mut bytes = bytes.expect("all buffers are back");
            bytes[..header.len()].copy_from_slice(header);
            Buffer {
                bytes,
                home: Rc::clone(&self.pool),
            }
        };
        self.headers.iter().map(fill).collect()
    }
}
