//! The network namespace of the kernel's interfaces, and the control interface, through which this
//! process talks to the one inside. The command does not see it.

use std::fs::File;
use std::net::TcpListener;

use nix::libc;
use thalweg_link::namespace::in_a_namespace_of_ones_own;
use thalweg_link::tun;

use crate::control;
use crate::error::Error;
use crate::place::NetworkNamespace;
use crate::run_ip;

/// This process's end of the control interface.
const CONTROL: &str = "control";

/// The control interface and its place; dropped, they are removed.
#[derive(Debug)]
pub(crate) struct Contact {
    /// None for an ordinary user, where only this process's own end is in a namespace.
    place: Option<NetworkNamespace>,
    device: File,
    listener: TcpListener,
}

impl Contact {
    /// Makes one in a network namespace.
    pub(crate) fn create(place: NetworkNamespace) -> Result<Self, Error> {
        let device = place.run_within(|| {
            tun::attach_as(CONTROL, libc::IFF_TAP).map_err(|(what, why)| {
                let advice = tun::open_hint(why.raw_os_error().unwrap_or(libc::EIO));
                Error::Missing(format!("cannot {what}: {why}; {advice}"))
            })
        })?;
        let listener = place.run_within(|| {
            set_up()?;
            open_listener().map_err(Error::system("cannot listen for the kernel"))
        })?;
        Ok(Self {
            place: Some(place),
            device,
            listener,
        })
    }

    /// Makes one for an ordinary user. The kernel's interfaces are in this process's namespace.
    ///
    /// # Errors
    /// [`Error::Missing`] if this user may not, with the remedy.
    pub(crate) fn create_as_user() -> Result<Self, Error> {
        let [device, listener] = in_a_namespace_of_ones_own(|| {
            let device = tun::attach_as(CONTROL, libc::IFF_TAP)?;
            set_up().map_err(|error| {
                (
                    "set up a TAP device",
                    std::io::Error::other(error.to_string()),
                )
            })?;
            let listener = open_listener().map_err(|error| ("listen for the kernel", error))?;
            Ok([device.into(), listener.into()])
        })?;
        Ok(Self {
            place: None,
            device: device.into(),
            listener: listener.into(),
        })
    }

    /// The network namespace of the kernel's interfaces; none: that of this process.
    pub(crate) fn place(&self) -> Option<&NetworkNamespace> {
        self.place.as_ref()
    }

    /// The TAP device of the control interface.
    pub(crate) fn device(&self) -> &File {
        &self.device
    }

    /// The listener that the process inside connects to.
    pub(crate) fn listener(&self) -> &TcpListener {
        &self.listener
    }
}

/// Configures the device in the calling thread's namespace.
fn set_up() -> Result<(), Error> {
    run_ip(&[
        format!("address add {}/30 dev {CONTROL}", control::HERE),
        format!(
            "link set dev {CONTROL} addrgenmode none mtu {} up",
            control::MTU_BYTES
        ),
    ])
}

fn open_listener() -> std::io::Result<TcpListener> {
    TcpListener::bind((control::HERE, control::PORT))
}
