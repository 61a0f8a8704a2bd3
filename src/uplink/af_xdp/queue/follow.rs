//! The way from an interface that is gone to the next one of its name.

use log::warn;

use super::AfXdpQueue;
use crate::sys::NetDevice;
use crate::uplink::af_xdp::error::AfXdpError;
use crate::uplink::af_xdp::interface::longest;
use crate::uplink::af_xdp::port::Port;

impl AfXdpQueue {
    /// Leaves an interface that is gone; what waits is thrown away and counted.
    ///
    /// At once, as it may be in another namespace, where our program would still take its frames,
    /// and as there may not be memory for two sockets.
    fn let_go(&mut self) {
        self.discard();
        self.reap();
        let Some(port) = self.port.take() else {
            return;
        };
        self.losses += port.losses();
        self.stats.tx_lost += port.socket.census().sending as u64;
        self.is_unpublished = false;
        self.generation += 1;
        let memory = port.let_go(&self.interface);
        if memory.has_lent() {
            self.retired.push(memory);
        }
    }

    /// The interface as it is now. One that is gone is left at once, and attached to is the next
    /// one at the next call: not before whoever watches our descriptor has let go of its socket.
    pub(super) fn find(&mut self) -> Result<NetDevice, AfXdpError> {
        let was_there = self.port.is_some();
        if self.port.as_ref().is_some_and(|port| !port.is_bound()) {
            self.let_go();
        }
        let attached = self.port.as_ref().map(Port::index);
        let found = self.interface.find(self.watch.socket(), attached)?;
        let (index, state) = found;
        if attached != Some(index) {
            if was_there {
                self.let_go();
                self.watch.try_later();
                let name = self.interface.name().to_owned();
                return Err(AfXdpError::Replaced { name });
            }
            self.attach(found)?;
        }
        self.note_mtu(state.mtu);
        Ok(state)
    }

    /// Attaches to an interface. If it cannot be it is tried again later: memory may still be
    /// locked, or the other queues may not have left the former one.
    fn attach(&mut self, found: (u32, NetDevice)) -> Result<(), AfXdpError> {
        let port = Port::attach(
            &self.interface,
            self.watch.socket(),
            found,
            self.number,
            false,
        );
        let port = port.inspect_err(|_| self.watch.try_later())?;
        self.watch.is_well();
        self.unfinished.set_accepted(port.has_unfinished());
        self.port = Some(port);
        self.generation += 1;
        Ok(())
    }

    fn note_mtu(&mut self, mtu: usize) {
        let most = self.longest();
        if core::mem::replace(&mut self.mtu, mtu) != mtu && mtu > most {
            let name = self.interface.name();
            warn!("the MTU of {name} is {mtu} now: frames above {most} are dropped and counted");
        }
    }

    /// The largest MTU that a chunk has room for.
    pub(super) fn longest(&self) -> usize {
        (self.port.as_ref()).map_or(usize::MAX, |port| longest(port.shape.chunk_len))
    }
}
