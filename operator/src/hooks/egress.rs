//! Where hooks may go: names are resolved here, every address is checked, and only a checked address is connected to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{PoisonError, RwLock};

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{NameServerConfig, ResolverConfig};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use ipnet::IpNet;
use url::{Host, Url};

/// What an operator's owner allows and refuses.
#[derive(Debug, Clone, Default)]
pub struct Policy {
    /// Networks that are allowed although they would be refused otherwise.
    pub allow: Vec<IpNet>,
    /// Networks that are refused.
    pub deny: Vec<IpNet>,
    /// If there are any, only these hosts are allowed. `*.example.com` stands for everything below it.
    pub allow_hosts: Vec<String>,
    /// Hosts that are refused.
    pub deny_hosts: Vec<String>,
    /// The API server's own addresses.
    pub api_server: Vec<IpAddr>,
}

/// Finds and checks addresses.
#[derive(Debug)]
pub struct Egress {
    policy: RwLock<Policy>,
    resolver: TokioResolver,
}

/// Why a place is not connected to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The policy says no.
    Policy(String),
    /// Nobody knows where it is.
    Unknown(String),
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Policy(text) | Self::Unknown(text) => out.write_str(text),
        }
    }
}

impl Egress {
    /// With the machine's name servers, or with one.
    pub fn new(policy: Policy, name_server: Option<SocketAddr>) -> Result<Self, String> {
        let provider = TokioRuntimeProvider::default();
        let builder = match name_server {
            None => TokioResolver::builder(provider).map_err(|error| format!("cannot read the machine's name servers: {error}"))?,
            Some(server) => {
                let mut config = NameServerConfig::udp_and_tcp(server.ip());
                config.connections.iter_mut().for_each(|connection| connection.port = server.port());
                TokioResolver::builder_with_config(ResolverConfig::from_parts(None, Vec::new(), vec![config]), provider)
            }
        };
        let resolver = builder.build().map_err(|error| format!("cannot start the resolver: {error}"))?;
        Ok(Self { policy: RwLock::new(policy), resolver })
    }

    fn policy(&self) -> std::sync::RwLockReadGuard<'_, Policy> {
        self.policy.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The API server's own addresses, as far as they are known.
    pub(crate) fn api_server(&self) -> Vec<IpAddr> {
        self.policy().api_server.clone()
    }

    /// From now on these are the API server's own addresses.
    pub fn api_server_is_at(&self, addresses: Vec<IpAddr>) {
        self.policy.write().unwrap_or_else(PoisonError::into_inner).api_server = addresses;
    }

    /// Addresses of a name, or of what is an address already.
    pub(crate) async fn find(&self, host: &str) -> Result<Vec<IpAddr>, Refusal> {
        if let Ok(address) = host.trim_matches(['[', ']']).parse() {
            return Ok(vec![address]);
        }
        let found = self.resolver.lookup_ip(host).await;
        Ok(found.map_err(|error| Refusal::Unknown(format!("the host {host} is not known: {error}")))?.iter().collect())
    }

    /// Addresses that a url leads to, all of them allowed.
    pub async fn addresses(&self, url: &Url) -> Result<Vec<SocketAddr>, Refusal> {
        let refuse = |text: String| Err(Refusal::Policy(text));
        if !matches!(url.scheme(), "http" | "https") {
            return refuse(format!("{} is not http or https", url.scheme()));
        }
        let port = url.port_or_known_default().ok_or_else(|| Refusal::Policy("the url has no port".to_owned()))?;
        let host = url.host().ok_or_else(|| Refusal::Policy("the url has no host".to_owned()))?;
        self.policy().check_host(&host.to_string())?;
        let found: Vec<IpAddr> = match host {
            Host::Ipv4(address) => vec![address.into()],
            Host::Ipv6(address) => vec![address.into()],
            Host::Domain(name) => self.find(name).await?,
        };
        let mut allowed = Vec::new();
        let mut refused = None;
        for address in found {
            match self.policy().check(address) {
                Ok(()) => allowed.push(SocketAddr::new(address, port)),
                Err(why) => {
                    let prefix = prefix(address);
                    refused = Some(format!("{address} is refused: {why}; --hook-allow-cidr {address}/{prefix} would allow it"));
                }
            }
        }
        match (allowed.is_empty(), refused) {
            (false, _) => Ok(allowed),
            (true, Some(why)) => refuse(why),
            (true, None) => Err(Refusal::Unknown("the host has no address".to_owned())),
        }
    }
}

fn prefix(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

impl Policy {
    fn check_host(&self, host: &str) -> Result<(), Refusal> {
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        let is = |pattern: &String| {
            let pattern = pattern.trim_end_matches('.').to_ascii_lowercase();
            pattern.strip_prefix('*').map_or(host == pattern, |end| host.ends_with(end))
        };
        if self.deny_hosts.iter().any(is) {
            return Err(Refusal::Policy(format!("the host {host} is refused by --hook-deny-host")));
        }
        if !self.allow_hosts.is_empty() && !self.allow_hosts.iter().any(is) {
            return Err(Refusal::Policy(format!("the host {host} is not among --hook-allow-host")));
        }
        Ok(())
    }

    /// Whether an address may be connected to.
    pub fn check(&self, address: IpAddr) -> Result<(), &'static str> {
        let inner = unwrapped(address);
        if self.deny.iter().any(|net| net.contains(&address) || net.contains(&inner)) {
            return Err("--hook-deny-cidr");
        }
        if self.allow.iter().any(|net| net.contains(&address) || net.contains(&inner)) {
            return Ok(());
        }
        match inner {
            IpAddr::V4(inner) => check_v4(inner)?,
            IpAddr::V6(inner) => check_v6(inner)?,
        }
        if self.api_server.contains(&inner) { Err("it is the API server's") } else { Ok(()) }
    }
}

fn check_v4(address: Ipv4Addr) -> Result<(), &'static str> {
    match address {
        _ if address.is_loopback() => Err("it is a loopback address"),
        _ if address.is_unspecified() || address.octets().first() == Some(&0) => Err("it is no address of a host"),
        _ if address.is_link_local() => Err("it is a link-local address"),
        _ if address.is_multicast() => Err("it is a multicast address"),
        _ if address.is_broadcast() => Err("it is a broadcast address"),
        _ => Ok(()),
    }
}

fn check_v6(address: Ipv6Addr) -> Result<(), &'static str> {
    match address {
        _ if address.is_loopback() => Err("it is a loopback address"),
        _ if address.is_unspecified() => Err("it is no address of a host"),
        _ if address.is_unicast_link_local() => Err("it is a link-local address"),
        _ if address.is_multicast() => Err("it is a multicast address"),
        // Local NAT64 (RFC 8215): what it stands for depends on who translates.
        _ if matches!(address.segments(), [0x64, 0xff9b, 1, ..]) => Err("it stands for another address"),
        // Where clouds keep the credentials of a machine.
        _ if address == Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254) => Err("it is a link-local address"),
        _ => Ok(()),
    }
}

/// The IPv4 address that an IPv6 address stands for, if it does: mapped, compatible, NAT64, 6to4.
fn unwrapped(address: IpAddr) -> IpAddr {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> Policy {
        Policy { api_server: vec!["10.96.0.1".parse().unwrap()], ..Policy::default() }
    }

    #[test]
    fn addresses_of_the_machine_and_of_the_cluster_itself_are_refused_in_every_form() {
        for address in [
            "127.0.0.1",
            "127.8.9.1",
            "0.0.0.0",
            "0.1.2.3",
            "169.254.169.254",
            "224.0.0.1",
            "255.255.255.255",
            "10.96.0.1",
            "::1",
            "::",
            "fe80::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "64:ff9b::7f00:1",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::7f00:1",
            "2002:7f00:1::",
            "::ffff:0:7f00:1",
            "64:ff9b:1:7f00:0:100::",
            "::7f00:1",
            "::ffff:10.96.0.1",
            "fd00:ec2::254",
        ] {
            assert!(policy().check(address.parse().unwrap()).is_err(), "{address}");
        }
        for address in [
            "1.1.1.1",
            "10.0.0.7",
            "192.168.1.1",
            "172.16.0.1",
            "100.64.0.1",
            "fd00::1",
            "2001:db8::1",
            "::ffff:10.0.0.7",
            "64:ff9b::101:101",
        ] {
            assert_eq!(policy().check(address.parse().unwrap()), Ok(()), "{address}");
        }
    }

    #[test]
    fn flags_allow_and_refuse() {
        let nets = |text: &str| vec![text.parse().unwrap()];
        let open = Policy { allow: nets("127.0.0.0/8"), ..policy() };
        assert!(open.check("127.0.0.1".parse().unwrap()).is_ok() && open.check("::1".parse().unwrap()).is_err());
        let shut = Policy { deny: nets("10.0.0.0/8"), allow: nets("10.0.0.0/8"), ..policy() };
        assert!(shut.check("10.0.0.7".parse().unwrap()).is_err(), "refusal wins");
        let hosts = Policy { allow_hosts: vec!["*.example.com".to_owned()], deny_hosts: vec!["bad.example.com".to_owned()], ..policy() };
        assert!(hosts.check_host("a.example.com").is_ok());
        assert!(hosts.check_host("BAD.example.com.").is_err());
        assert!(hosts.check_host("example.org").is_err());
    }

    #[tokio::test]
    async fn odd_spellings_of_an_address_are_seen_through() {
        let egress = Egress::new(policy(), Some("127.0.0.1:1".parse().unwrap())).unwrap();
        for url in ["http://2130706433/", "http://0x7f.1/", "http://127.1/", "http://[::ffff:7f00:1]/", "http://0177.0.0.1:80/"] {
            let refused = egress.addresses(&Url::parse(url).unwrap()).await.unwrap_err();
            assert!(matches!(refused, Refusal::Policy(_)), "{url}: {refused}");
        }
        let file = egress.addresses(&Url::parse("file:///etc/passwd").unwrap()).await.unwrap_err();
        assert!(file.to_string().contains("not http or https"));
    }
}
