//! Where the kernel's interfaces are, and what this process talks to the one inside by: an
//! interface that the command does not see.

use std::fs::File;
use std::net::TcpListener;

use nix::libc;

use super::control;
use super::ip;
use super::place::Place;
use crate::error::Error;
use crate::link::tun;

/// This process's end of what the command does not see.
const CONTROL: &str = "control";

/// Dropped, it is gone.
#[derive(Debug)]
pub(super) struct Contact {
    place: Place,
    device: File,
    listener: TcpListener,
}

impl Contact {
    /// Makes one in a network namespace.
    pub(super) fn create(place: Place) -> Result<Self, Error> {
        let device = place.within(|| {
            tun::attach_as(CONTROL, libc::IFF_TAP).map_err(|(what, why)| {
                let advice = tun::advice(why.raw_os_error().unwrap_or(libc::EIO));
                Error::Missing(format!("cannot {what}: {why}; {advice}"))
            })
        })?;
        let listener = place.within(|| {
            ip(&[
                format!("address add {}/30 dev {CONTROL}", control::HERE),
                format!(
                    "link set dev {CONTROL} addrgenmode none mtu {} up",
                    control::MTU_BYTES
                ),
            ])?;
            TcpListener::bind((control::HERE, control::PORT))
                .map_err(Error::system("cannot listen for the kernel"))
        })?;
        Ok(Self {
            place,
            device,
            listener,
        })
    }

    /// Where the kernel's interfaces are.
    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    /// The TAP device of the interface that the command does not see.
    pub(super) fn device(&self) -> &File {
        &self.device
    }

    /// Where the process inside connects to.
    pub(super) fn listener(&self) -> &TcpListener {
        &self.listener
    }
}
