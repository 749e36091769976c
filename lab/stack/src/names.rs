//! Name resolution: the kernel gets the machine's resolv.conf(5), as far as it can reach the
//! servers ([`thalweg_link::outside::names`]).

use std::net::{IpAddr, Ipv4Addr};

use thalweg_link::outside::names::{Resolver, answer_queries, bind_dns, rewrite_resolvers};

use crate::error::Error;
use crate::wire::Wire;

/// The resolver that a prepared wire must lead to, if any.
pub(crate) fn for_a_wire() -> Option<Ipv4Addr> {
    match Resolver::of_the_machine(true)? {
        Resolver::Local(IpAddr::V4(address), _) if !address.is_unspecified() => Some(address),
        Resolver::Local(..) => Some(Ipv4Addr::LOCALHOST),
        Resolver::Reached(_) => None,
    }
}

/// The kernel's resolv.conf; none if the machine has none. Starts forwarding questions if
/// necessary.
pub(crate) fn for_the_kernel(wire: &Wire) -> Result<Option<String>, Error> {
    Ok(match Resolver::of_the_machine(true) {
        None => None,
        Some(Resolver::Reached(text)) => Some(text),
        Some(Resolver::Local(resolver, text)) => {
            let address = wire.wire_addresses().resolver;
            // On a prepared wire the machine forwards questions to its resolver.
            if let Some(place) = wire.contact().place() {
                let (udp, tcp) = place.run_within(|| {
                    bind_dns(address).map_err(Error::system("cannot take questions for names"))
                })?;
                answer_queries(udp, tcp, resolver)?;
            }
            Some(rewrite_resolvers(&text, address, true))
        }
    })
}
