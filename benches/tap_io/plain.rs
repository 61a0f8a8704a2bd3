//! One system call a frame.

use std::io;

use vhost_user_gro::sys::write_parts;
use vhost_user_gro::uplink::{FramePool, RecvEnd, RxFrame, TxFrame, UplinkQueue};

use crate::{BUDGET, Receive, Send};

/// As the daemon does it.
pub(crate) struct Calls(pub(crate) Box<dyn UplinkQueue>);

/// Each frame by `writev`, however short it is.
pub(crate) struct Pieces(pub(crate) Box<dyn UplinkQueue>);

impl Send for Calls {
    fn send_bulk(&mut self, frame: &TxFrame<'_>, count: usize) -> io::Result<()> {
        for _ in 0..count {
            self.0.send(frame).map_err(io::Error::other)?;
        }
        self.0.flush().map(drop).map_err(io::Error::other)
    }
}

impl Receive for Calls {
    fn receive(&mut self, pool: &FramePool, out: &mut Vec<RxFrame>) -> io::Result<bool> {
        let end = self.0.recv_batch(pool, BUDGET, out);
        Ok(end.map_err(io::Error::other)? == RecvEnd::Budget)
    }
}

impl Send for Pieces {
    fn send_bulk(&mut self, frame: &TxFrame<'_>, count: usize) -> io::Result<()> {
        for _ in 0..count {
            let hdr = frame.vnet.encode();
            write_parts(self.0.fd(), &[&hdr, frame.head], frame.rest)?;
        }
        Ok(())
    }
}
