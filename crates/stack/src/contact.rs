//! Where the kernel's interfaces are, and what this process talks to the one inside by: an
//! interface that the command does not see.

use std::fs::File;
use std::net::TcpListener;

use nix::libc;
use thalweg_link::namespace::in_a_namespace_of_ones_own;
use thalweg_link::tun;

use crate::control;
use crate::error::Error;
use crate::ip;
use crate::place::Place;

/// This process's end of what the command does not see.
const CONTROL: &str = "control";

/// Dropped, it is gone.
#[derive(Debug)]
pub(crate) struct Contact {
    /// None where only this process's own end is in a namespace, an ordinary user's.
    place: Option<Place>,
    device: File,
    listener: TcpListener,
}

impl Contact {
    /// Makes one in a network namespace.
    pub(crate) fn create(place: Place) -> Result<Self, Error> {
        let device = place.within(|| {
            tun::attach_as(CONTROL, libc::IFF_TAP).map_err(|(what, why)| {
                let advice = tun::advice(why.raw_os_error().unwrap_or(libc::EIO));
                Error::Missing(format!("cannot {what}: {why}; {advice}"))
            })
        })?;
        let listener = place.within(|| {
            set_up()?;
            listen().map_err(Error::system("cannot listen for the kernel"))
        })?;
        Ok(Self {
            place: Some(place),
            device,
            listener,
        })
    }

    /// Makes one as an ordinary user. The kernel's interfaces are where this process is.
    ///
    /// # Errors
    /// [`Error::Missing`] where this user may not, with the remedy.
    pub(crate) fn create_as_user() -> Result<Self, Error> {
        let [device, listener] = in_a_namespace_of_ones_own(|| {
            let device = tun::attach_as(CONTROL, libc::IFF_TAP)?;
            set_up().map_err(|error| {
                (
                    "set up a TAP device",
                    std::io::Error::other(error.to_string()),
                )
            })?;
            let listener = listen().map_err(|error| ("listen for the kernel", error))?;
            Ok([device.into(), listener.into()])
        })?;
        Ok(Self {
            place: None,
            device: device.into(),
            listener: listener.into(),
        })
    }

    /// Where the kernel's interfaces are; none: where this process is.
    pub(crate) fn place(&self) -> Option<&Place> {
        self.place.as_ref()
    }

    /// The TAP device of the interface that the command does not see.
    pub(crate) fn device(&self) -> &File {
        &self.device
    }

    /// Where the process inside connects to.
    pub(crate) fn listener(&self) -> &TcpListener {
        &self.listener
    }
}

/// Addresses the device where the calling thread is.
fn set_up() -> Result<(), Error> {
    ip(&[
        format!("address add {}/30 dev {CONTROL}", control::HERE),
        format!(
            "link set dev {CONTROL} addrgenmode none mtu {} up",
            control::MTU_BYTES
        ),
    ])
}

fn listen() -> std::io::Result<TcpListener> {
    TcpListener::bind((control::HERE, control::PORT))
}
