//! Everything that speaks vhost-user.
//!
//! [`Sessions`] accepts or makes connections, one at a time, for ever. For each there is
//!
//! - a *relay* between the front-end's socket and the framework, that makes the dialogue one that
//!   the framework understands and refuses what the protocol does not allow;
//! - a *daemon* of the `vhost-user-backend` crate, that maps memory and keeps the order of the
//!   protocol; it has a control thread and no workers;
//! - the *rings* of the session, which hand every change as one whole state to the data threads
//!   through [`PairControl`](crate::worker::PairControl) and wait until it is taken over.
//!
//! Nothing here touches a descriptor, a frame or a ring's memory. A fault of a front-end ends its
//! connection and nothing else; at the end of a connection the data threads let go of everything
//! before the guest's memory is unmapped.
//!
//! What is not offered: dirty logging, in-flight tracking, postcopy, requests of our own.

mod device;
mod endpoint;
mod entrance;
mod framework;
mod names;
mod pairs;
mod relay;
mod ring;
mod session;
mod vring;
mod watch;

pub use device::Offer;
pub use endpoint::{Endpoint, EndpointError};
pub use entrance::Entrance;
pub use relay::QueueNumUnit;
pub use session::Sessions;
pub use watch::{LinkHandle, StopHandle};
