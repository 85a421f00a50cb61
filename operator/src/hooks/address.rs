//! Addresses that are refused to every hook, in every notation.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Why an address is refused to every hook.
pub(crate) fn check(address: IpAddr) -> Result<(), &'static str> {
    match address {
        IpAddr::V4(address) => check_v4(address),
        IpAddr::V6(address) => check_v6(address),
    }
}

const METADATA: &str = "it is a cloud's metadata service";

/// Metadata services of clouds that are not link-local: Alibaba, Azure, Oracle.
const METADATA_V4: [Ipv4Addr; 3] = [Ipv4Addr::new(100, 100, 100, 200), Ipv4Addr::new(168, 63, 129, 16), Ipv4Addr::new(192, 0, 0, 192)];
/// The same: EC2, EKS pod identity, GCE.
const METADATA_V6: [Ipv6Addr; 3] = [
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23),
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
];

fn check_v4(address: Ipv4Addr) -> Result<(), &'static str> {
    match address {
        _ if address.is_loopback() => Err("it is a loopback address"),
        _ if address.is_unspecified() || address.octets().first() == Some(&0) => Err("it is no address of a host"),
        _ if address.is_link_local() => Err("it is a link-local address"),
        _ if address.is_multicast() => Err("it is a multicast address"),
        _ if address.is_broadcast() => Err("it is a broadcast address"),
        _ if METADATA_V4.contains(&address) => Err(METADATA),
        _ => Ok(()),
    }
}

fn check_v6(address: Ipv6Addr) -> Result<(), &'static str> {
    match address {
        _ if address.is_loopback() => Err("it is a loopback address"),
        _ if address.is_unspecified() => Err("it is no address of a host"),
        _ if address.is_unicast_link_local() => Err("it is a link-local address"),
        _ if address.is_multicast() => Err("it is a multicast address"),
        // Local NAT64 (RFC 8215): the embedded address depends on the translator's configuration.
        _ if matches!(address.segments(), [0x64, 0xff9b, 1, ..]) => Err("it stands for another address"),
        _ if METADATA_V6.contains(&address) => Err(METADATA),
        _ => Ok(()),
    }
}

/// The IPv4 address that an IPv6 address stands for, if it does: mapped, compatible, NAT64, 6to4.
pub(crate) fn unwrapped(address: IpAddr) -> IpAddr {
    let IpAddr::V6(six) = address else { return address };
    let [a, b, c, d, e, f, g, h] = six.segments();
    let four = |high: u16, low: u16| {
        let ([one, two], [three, four]) = (high.to_be_bytes(), low.to_be_bytes());
        IpAddr::V4(Ipv4Addr::new(one, two, three, four))
    };
    match (a, b, c, d, e, f) {
        (0, 0, 0, 0, 0, 0xffff) => four(g, h),
        // ::1 and :: are themselves.
        (0, 0, 0, 0, 0, 0) if (g, h) != (0, 0) && (g, h) != (0, 1) => four(g, h),
        (0x64, 0xff9b, 0, 0, 0, 0) => four(g, h),
        // Translated addresses of RFC 2765.
        (0, 0, 0, 0, 0xffff, 0) => four(g, h),
        (0x2002, high, low, ..) => four(high, low),
        _ => address,
    }
}

/// An IPv4 address in every form that an IPv6 address can give it.
#[cfg(test)]
pub(crate) fn forms(address: Ipv4Addr) -> Vec<IpAddr> {
    let [a, b, c, d] = address.octets();
    let (high, low) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
    let six = [
        address.to_ipv6_mapped(),
        Ipv6Addr::new(0, 0, 0, 0, 0, 0, high, low),
        Ipv6Addr::new(0, 0, 0, 0, 0xffff, 0, high, low),
        Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low),
        Ipv6Addr::new(0x2002, high, low, 0, 0, 0, 0, 0),
        Ipv6Addr::new(0x2002, high, low, 1, 2, 3, 4, 5),
    ];
    std::iter::once(IpAddr::V4(address)).chain(six.map(IpAddr::V6)).collect()
}
