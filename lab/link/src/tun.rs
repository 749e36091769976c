//! A TUN device in the namespace of the calling thread: made, addressed, up.

use std::fs::File;
use std::io;
use std::mem;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use nix::libc;
use thalweg_units::prefix::{self, MAPPED};

/// The device through which the kernel lends TUN devices.
pub const DEVICE: &str = "/dev/net/tun";

/// Largest IP packet on the link, in bytes.
pub const MTU_BYTES: usize = 1500;

/// The device's name, the same at both ends.
pub const NAME: &str = "thalweg0";

/// Packets that may wait for this process to read them. It is generous because
/// what is dropped there is not part of the path that was asked for.
pub const WAITING_PACKETS: u32 = 10_000;

pub(crate) const PREFIX_V6: u16 = 64;

/// The addresses of one end.
#[derive(Debug, Clone, Copy)]
pub struct Addresses {
    /// IPv4 address of the end.
    pub v4: Ipv4Addr,
    /// Length of the prefix that both ends share.
    pub prefix_v4: u8,
    /// IPv6 address of the end, in a /64.
    pub v6: Ipv6Addr,
    /// Whether it sends all of IPv4 to the other end. Without a way on, the other
    /// end says so.
    pub sends_all: bool,
    /// Whether it sends all of IPv6 to the other end.
    pub sends_all_v6: bool,
    /// Whether it forwards IPv6.
    pub forwards_v6: bool,
}

/// A system call that failed, and what it was for.
pub type Fault = (&'static str, io::Error);

/// Creates the device with its addresses, brings it and the loopback up, and
/// sets its routes. Returns the descriptor that carries its packets,
/// and whether the kernel has IPv6.
pub fn create_device(addresses: Addresses) -> Result<(OwnedFd, bool), Fault> {
    let device = open_tun()?;
    let v4 = open_dgram(libc::AF_INET).map_err(|error| ("open a socket", error))?;
    bring_up(&v4, "lo").map_err(|error| ("bring the loopback up", error))?;
    lengthen_queue(&v4).map_err(|error| ("lengthen the TUN device's queue", error))?;
    configure_v4(&v4, addresses).map_err(|error| ("configure the TUN device", error))?;
    let has_v6 = match open_dgram(libc::AF_INET6) {
        Ok(v6) => configure_v6(&v4, &v6, addresses).map(|()| true),
        // A kernel without IPv6, or with ipv6.disable=1.
        Err(_) => Ok(false),
    };
    let has_v6 = match has_v6 {
        // Switched off by net.ipv6.conf.default.disable_ipv6.
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => false,
        other => other.map_err(|error| ("configure IPv6 on the TUN device", error))?,
    };
    Ok((device, has_v6))
}

/// Opens /dev/net/tun for a device of this name in the calling thread's namespace.
pub fn attach_device(name: &str) -> Result<File, Fault> {
    attach_as(name, libc::IFF_TUN)
}

/// Opens /dev/net/tun for a device of packets (`IFF_TUN`) or of Ethernet frames (`IFF_TAP`) in the
/// calling thread's namespace.
pub fn attach_as(name: &str, kind: libc::c_int) -> Result<File, Fault> {
    let file = File::options()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(DEVICE)
        .map_err(|error| ("open /dev/net/tun", error))?;
    let mut request = interface_request(name);
    request.ifr_ifru.ifru_flags = (kind | libc::IFF_NO_PI) as libc::c_short;
    ioctl(file.as_raw_fd(), libc::TUNSETIFF, &request)
        .map_err(|error| ("create a TUN device", error))?;
    Ok(file)
}

/// Remedy where [`DEVICE`] cannot be opened.
pub fn open_hint(errno: i32) -> &'static str {
    match errno {
        libc::EACCES | libc::EPERM => {
            "this user may not open it; as root: chmod 0666 /dev/net/tun (the usual mode)"
        }
        _ => {
            "the kernel's TUN driver is not there; as root: modprobe tun; in a container, hand the \
             device in (docker run --device /dev/net/tun)"
        }
    }
}

fn open_tun() -> Result<OwnedFd, Fault> {
    // Packets of the kernel's own (router solicitations, a link-local address) would be counted as
    // traffic. Without /proc/sys they are.
    for (setting, value) in [
        ("ipv6/conf/default/addr_gen_mode", "1"),
        ("ipv6/conf/default/accept_ra", "0"),
        ("ipv6/conf/default/router_solicitations", "0"),
        // So that an address that neither end has is refused, not ignored. An IPv6
        // router would send reports of its groups, so there is no route instead.
        ("ipv4/ip_forward", "1"),
    ] {
        let _ = std::fs::write(format!("/proc/sys/net/{setting}"), value);
    }
    Ok(attach_device(NAME)?.into())
}

fn configure_v4(socket: &OwnedFd, addresses: Addresses) -> io::Result<()> {
    let fd = socket.as_raw_fd();
    let mut request = interface_request(NAME);
    request.ifr_ifru.ifru_mtu = MTU_BYTES as libc::c_int;
    ioctl(fd, libc::SIOCSIFMTU, &request)?;
    request.ifr_ifru.ifru_addr = socket_address(addresses.v4);
    ioctl(fd, libc::SIOCSIFADDR, &request)?;
    let mask = Ipv4Addr::from_bits(prefix::prefix_mask(MAPPED + addresses.prefix_v4) as u32);
    request.ifr_ifru.ifru_netmask = socket_address(mask);
    ioctl(fd, libc::SIOCSIFNETMASK, &request)?;
    bring_up(socket, NAME)?;
    if !addresses.sends_all {
        return Ok(());
    }
    // SAFETY: plain data, for which all zeroes is a value.
    let mut route: libc::rtentry = unsafe { mem::zeroed() };
    route.rt_dst = socket_address(Ipv4Addr::UNSPECIFIED);
    route.rt_genmask = socket_address(Ipv4Addr::UNSPECIFIED);
    route.rt_flags = libc::RTF_UP;
    let mut name = request.ifr_name;
    route.rt_dev = name.as_mut_ptr();
    ioctl(fd, libc::SIOCADDRT, &route)
}

fn configure_v6(v4: &OwnedFd, v6: &OwnedFd, addresses: Addresses) -> io::Result<()> {
    let index = index(v4)?;
    let octets = libc::in6_addr {
        s6_addr: addresses.v6.octets(),
    };
    let given = libc::in6_ifreq {
        ifr6_addr: octets,
        ifr6_prefixlen: PREFIX_V6.into(),
        ifr6_ifindex: index,
    };
    ioctl(v6.as_raw_fd(), libc::SIOCSIFADDR, &given)?;
    if addresses.forwards_v6 {
        // For packets of others, a later device asks for neighbours from a link-local address, and
        // has it at once.
        for (setting, value) in [
            ("all/forwarding", "1"),
            ("default/addr_gen_mode", "0"),
            ("default/accept_dad", "0"),
        ] {
            std::fs::write(format!("/proc/sys/net/ipv6/conf/{setting}"), value)?;
        }
    }
    if !addresses.sends_all_v6 {
        return Ok(());
    }
    let route = RouteV6 {
        metric: 1,
        flags: libc::RTF_UP.into(),
        index,
        ..RouteV6::default()
    };
    ioctl(v6.as_raw_fd(), libc::SIOCADDRT, &route)
}

/// `struct in6_rtmsg` of linux/ipv6_route.h, whose fields the libc crate keeps to itself. All
/// zeroes stand for the default route.
#[repr(C)]
#[derive(Default)]
struct RouteV6 {
    destination: [u32; 4],
    source: [u32; 4],
    gateway: [u32; 4],
    kind: u32,
    destination_length: u16,
    source_length: u16,
    metric: u32,
    info: libc::c_ulong,
    flags: u32,
    index: libc::c_int,
}

/// The device's number.
fn index(socket: &OwnedFd) -> io::Result<libc::c_int> {
    let mut request = interface_request(NAME);
    ioctl(socket.as_raw_fd(), libc::SIOCGIFINDEX, &mut request)?;
    // SAFETY: SIOCGIFINDEX has just written this member.
    Ok(unsafe { request.ifr_ifru.ifru_ifindex })
}

/// A request to set the length of a device's queue (rtnetlink(7)), or its answer.
#[repr(C)]
struct QueueRequest {
    header: libc::nlmsghdr,
    link: libc::ifinfomsg,
    attribute_bytes: u16,
    attribute: u16,
    packets: u32,
}

/// By netlink: for the ioctl one has to be root outside too.
fn lengthen_queue(socket: &OwnedFd) -> io::Result<()> {
    // SAFETY: plain data, for which all zeroes is a value.
    let mut request: QueueRequest = unsafe { mem::zeroed() };
    request.header.nlmsg_len = size_of::<QueueRequest>() as u32;
    request.header.nlmsg_type = libc::RTM_NEWLINK;
    request.header.nlmsg_flags = (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
    request.link.ifi_index = index(socket)?;
    request.attribute_bytes = 8;
    request.attribute = libc::IFLA_TXQLEN;
    request.packets = WAITING_PACKETS;
    let netlink = open_socket(libc::AF_NETLINK, libc::SOCK_RAW)?;
    let mut answer = [0u8; 512];
    // SAFETY: each call gets a buffer that lives throughout, with its size.
    let received = unsafe {
        let sent = libc::send(
            netlink.as_raw_fd(),
            (&raw const request).cast(),
            size_of::<QueueRequest>(),
            0,
        );
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        libc::recv(
            netlink.as_raw_fd(),
            answer.as_mut_ptr().cast(),
            answer.len(),
            0,
        )
    };
    if received < 0 {
        return Err(io::Error::last_os_error());
    }
    // After the header comes a negative errno, or zero.
    let errno = [answer[16], answer[17], answer[18], answer[19]];
    match i32::from_ne_bytes(errno) {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(-errno)),
    }
}

fn bring_up(socket: &OwnedFd, name: &str) -> io::Result<()> {
    let mut request = interface_request(name);
    ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS, &mut request)?;
    // SAFETY: SIOCGIFFLAGS has just written this member.
    unsafe { request.ifr_ifru.ifru_flags |= libc::IFF_UP as libc::c_short };
    ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &request)
}

fn open_dgram(family: libc::c_int) -> io::Result<OwnedFd> {
    open_socket(family, libc::SOCK_DGRAM)
}

fn open_socket(family: libc::c_int, kind: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: takes three integers; on success the descriptor is new and ours.
    unsafe {
        let fd = libc::socket(family, kind | libc::SOCK_CLOEXEC, 0);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// Which argument a request takes: one to read, or one that the kernel fills.
trait Argument {
    fn address(self) -> *mut libc::c_void;
}

impl<T> Argument for &T {
    fn address(self) -> *mut libc::c_void {
        std::ptr::from_ref(self).cast_mut().cast()
    }
}

impl<T> Argument for &mut T {
    fn address(self) -> *mut libc::c_void {
        std::ptr::from_mut(self).cast()
    }
}

fn ioctl(fd: i32, number: libc::Ioctl, argument: impl Argument) -> io::Result<()> {
    // SAFETY: each caller passes the struct that its request is defined for, and
    // by mutable reference where the kernel writes to it.
    match unsafe { libc::ioctl(fd, number, argument.address()) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

fn interface_request(name: &str) -> libc::ifreq {
    // SAFETY: plain data, for which all zeroes is a value.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    // The last byte stays the terminating zero.
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request
}

fn socket_address(address: Ipv4Addr) -> libc::sockaddr {
    let address = libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: 0,
        sin_addr: libc::in_addr {
            s_addr: u32::from_ne_bytes(address.octets()),
        },
        sin_zero: [0; 8],
    };
    // SAFETY: both are plain data of the same size, and the kernel reads a
    // sockaddr of family AF_INET as a sockaddr_in.
    unsafe { mem::transmute::<libc::sockaddr_in, libc::sockaddr>(address) }
}
