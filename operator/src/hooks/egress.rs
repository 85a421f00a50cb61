//! The egress policy of hooks: names are resolved here, every address is checked, and only checked addresses are connected to.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::{PoisonError, RwLock};

use clap::ValueEnum;
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{NameServerConfig, ResolverConfig};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use ipnet::IpNet;
use url::{Host, Url};

use super::address::{self, unwrapped};
use crate::kinds::node::Node;
use crate::store::Store;

/// The reach of hooks. Each value refuses what is refused to every hook, and allows --hook-allow-cidr.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Reach {
    /// Every address that is not refused for every hook
    #[default]
    Open,
    /// Pods and Services: the podCIDRs of nodes, the ServiceCIDRs and --hook-allow-cidr
    Cluster,
    /// Pods of the HookRun's own namespace and its Services that have a selector
    OwnPods,
}

/// What the operator's flags allow and refuse.
#[derive(Debug, Clone, Default)]
pub struct Policy {
    /// The reach of hooks.
    pub reach: Reach,
    /// Networks that are allowed although they would be refused otherwise.
    pub allow: Vec<IpNet>,
    /// Networks that are refused.
    pub deny: Vec<IpNet>,
    /// If there are any, only these hosts are allowed. `*.example.com` matches every host below it.
    pub allow_hosts: Vec<String>,
    /// Hosts that are refused.
    pub deny_hosts: Vec<String>,
}

/// The addresses of the cluster, as far as they are known.
#[derive(Debug, Default)]
struct Known {
    /// The API server's own addresses. None while they are not known.
    api_server: Option<HashSet<IpAddr>>,
    nodes: HashSet<IpAddr>,
    pods: HashSet<IpNet>,
    services: HashSet<IpNet>,
}

/// Resolves names and checks addresses.
#[derive(Debug)]
pub struct Egress {
    policy: Policy,
    known: RwLock<Known>,
    resolver: TokioResolver,
}

/// Why a connection is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The policy refuses it.
    Policy(String),
    /// The name cannot be resolved, or it cannot be looked up what the address belongs to.
    Unknown(String),
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Policy(text) | Self::Unknown(text) => out.write_str(text),
        }
    }
}

/// Why an address is not allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Denied {
    /// By --hook-deny-cidr, which has precedence over everything else.
    ByFlag,
    /// To every hook.
    ToAll(&'static str),
    /// To every hook except one about a pod with `hostNetwork` on this node.
    Node,
    /// To every hook except those of the namespace that the address belongs to.
    Foreign,
}

impl Denied {
    /// The message: what is refused, why, and the flag that would allow it.
    pub(crate) fn of(self, address: IpAddr) -> Refusal {
        let why = match self {
            Self::ByFlag => return Refusal::Policy(format!("{address} is refused: --hook-deny-cidr")),
            Self::ToAll(why) => why,
            Self::Node => "it is a node's",
            Self::Foreign => "it belongs neither to a pod of this namespace nor to a Service of it that has a selector",
        };
        let prefix = if address.is_ipv4() { 32 } else { 128 };
        Refusal::Policy(format!("{address} is refused: {why}; --hook-allow-cidr {address}/{prefix} would allow it"))
    }
}

impl Egress {
    /// Uses the system's name servers, or `name_server`.
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
        Ok(Self { policy, known: RwLock::default(), resolver })
    }

    fn known(&self) -> std::sync::RwLockReadGuard<'_, Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn known_mut(&self) -> std::sync::RwLockWriteGuard<'_, Known> {
        self.known.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the networks of Services are needed.
    pub(crate) fn needs_services(&self) -> bool {
        self.policy.reach == Reach::Cluster
    }

    /// Whether the networks of pods and Services are needed and none is known.
    pub(crate) fn lacks_networks(&self) -> bool {
        self.policy.lacks_networks(&self.known())
    }

    /// The API server's own addresses, if they are known.
    pub(crate) fn api_server(&self) -> Option<HashSet<IpAddr>> {
        self.known().api_server.clone()
    }

    /// Sets the API server's own addresses.
    pub(crate) fn api_server_is_at(&self, addresses: impl IntoIterator<Item = IpAddr>) {
        self.known_mut().api_server = Some(addresses.into_iter().map(unwrapped).collect());
    }

    /// Sets the networks of Services.
    pub(crate) fn services_are_in(&self, networks: impl IntoIterator<Item = IpNet>) {
        self.known_mut().services = networks.into_iter().map(|network| network.trunc()).collect();
    }

    /// Sets the addresses of nodes and the networks of their pods from the cache.
    pub(crate) fn see_nodes(&self, nodes: &Store<Node>) {
        // Locked before the nodes are read: if two threads do this at once, the last one has the newest nodes.
        let mut known = self.known_mut();
        let nodes = nodes.all();
        known.nodes = nodes.iter().flat_map(|node| &node.addresses).copied().map(unwrapped).collect();
        known.pods = nodes.iter().flat_map(|node| &node.pod_networks).map(IpNet::trunc).collect();
    }

    /// The addresses of a host, which is a name or an address.
    pub(crate) async fn find(&self, host: &str) -> Result<Vec<IpAddr>, Refusal> {
        if let Ok(address) = host.trim_matches(['[', ']']).parse() {
            return Ok(vec![address]);
        }
        match self.resolver.lookup_ip(host).await {
            Ok(found) => Ok(found.iter().collect()),
            // The name server's own error is not shown to users of hooks.
            Err(error) if error.is_nx_domain() || error.is_no_records_found() => {
                Err(Refusal::Unknown(format!("the host {host} is not known")))
            }
            Err(_) => Err(Refusal::Unknown(format!("the name server does not say where the host {host} is"))),
        }
    }

    /// The addresses of a url, not checked yet.
    pub(crate) async fn places(&self, url: &Url) -> Result<Vec<SocketAddr>, Refusal> {
        let refuse = |text: &str| Refusal::Policy(text.to_owned());
        if !matches!(url.scheme(), "http" | "https") {
            return Err(refuse(&format!("{} is not http or https", url.scheme())));
        }
        let port = url.port_or_known_default().ok_or_else(|| refuse("the url has no port"))?;
        let host = url.host().ok_or_else(|| refuse("the url has no host"))?;
        self.policy.check_host(&host.to_string())?;
        let found: Vec<IpAddr> = match host {
            Host::Ipv4(address) => vec![address.into()],
            Host::Ipv6(address) => vec![address.into()],
            Host::Domain(name) => self.find(name).await?,
        };
        Ok(found.into_iter().map(|address| SocketAddr::new(address, port)).collect())
    }

    /// Whether an address may be connected to.
    pub(crate) fn check(&self, address: IpAddr) -> Result<(), Denied> {
        self.policy.check(address, &self.known())
    }
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

    fn lacks_networks(&self, known: &Known) -> bool {
        self.reach == Reach::Cluster && known.pods.is_empty() && known.services.is_empty() && self.allow.is_empty()
    }

    fn check(&self, address: IpAddr, known: &Known) -> Result<(), Denied> {
        let inner = unwrapped(address);
        if self.deny.iter().any(|net| net.contains(&address) || net.contains(&inner)) {
            return Err(Denied::ByFlag);
        }
        if self.allow.iter().any(|net| net.contains(&address) || net.contains(&inner)) {
            return Ok(());
        }
        address::check(inner).map_err(Denied::ToAll)?;
        match &known.api_server {
            None => {
                return Err(Denied::ToAll(
                    "it is not known yet where the API server is, which hooks may not reach (see the operator's log)",
                ));
            }
            Some(addresses) if addresses.contains(&inner) => return Err(Denied::ToAll("it is the API server's")),
            Some(_) => {}
        }
        if known.nodes.contains(&inner) {
            return Err(Denied::Node);
        }
        match self.reach {
            Reach::Open => Ok(()),
            Reach::OwnPods => Err(Denied::Foreign),
            Reach::Cluster if self.lacks_networks(known) => Err(Denied::ToAll(NO_NETWORKS)),
            Reach::Cluster if is_in(&known.pods, inner) || is_in(&known.services, inner) => Ok(()),
            Reach::Cluster => Err(Denied::ToAll("it is neither in the podCIDRs of a node nor in a ServiceCIDR")),
        }
    }
}

pub(crate) const NO_NETWORKS: &str = "the networks of this cluster are not known: no node has podCIDRs, and no ServiceCIDR was found";

/// Whether one of the networks contains an address. There may be as many networks as nodes, so each prefix of the address is
/// looked up instead of scanning the networks.
fn is_in(networks: &HashSet<IpNet>, address: IpAddr) -> bool {
    let longest = if address.is_ipv4() { 32 } else { 128 };
    !networks.is_empty() && (0..=longest).any(|length| IpNet::new(address, length).is_ok_and(|network| networks.contains(&network.trunc())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hooks::address::forms;
    use crate::store::Cached as _;

    /// A policy in a cluster whose API server's addresses are known.
    fn known(policy: Policy) -> Egress {
        let egress = Egress::new(policy, Some("127.0.0.1:1".parse().unwrap())).unwrap();
        egress.api_server_is_at(["10.96.0.1".parse().unwrap()]);
        egress
    }

    fn check(egress: &Egress, address: &str) -> Result<(), Denied> {
        egress.check(address.parse().unwrap())
    }

    fn nodes(nodes: &[(&[&str], &[&str])]) -> Store<Node> {
        let store = Store::default();
        for (number, (addresses, networks)) in nodes.iter().enumerate() {
            let addresses: Vec<_> = addresses.iter().map(|one| serde_json::json!({ "type": "InternalIP", "address": one })).collect();
            let node = serde_json::json!({
                "metadata": { "name": format!("node-{number}"), "uid": "u", "resourceVersion": "1" },
                "spec": { "podCIDRs": networks }, "status": { "addresses": addresses },
            });
            let node = Node::decode(&node.to_string()).unwrap();
            store.put(&node.key(), Some(node));
        }
        store
    }

    #[test]
    fn addresses_of_the_machine_and_of_the_cluster_itself_are_refused_in_every_form() {
        let egress = known(Policy::default());
        egress.see_nodes(&nodes(&[(&["10.1.0.7", "2001:db8::7", "node-0"], &[])]));
        for address in [
            "127.0.0.1",
            "127.8.9.1",
            "0.1.2.3",
            "169.254.169.254",
            "169.254.170.23",
            "224.0.0.1",
            "255.255.255.255",
            "10.96.0.1",
            "100.100.100.200",
            "168.63.129.16",
            "192.0.0.192",
            "10.1.0.7",
        ] {
            for form in forms(address.parse().unwrap()) {
                assert!(egress.check(form).is_err(), "{address} as {form}");
            }
        }
        for address in [
            "0.0.0.0",
            "::1",
            "::",
            "fe80::1",
            "ff02::1",
            "64:ff9b:1::7f00:1",
            "64:ff9b:1:7f00:0:100::",
            "fd00:ec2::254",
            "fd00:ec2::23",
            "fd20:ce::254",
            "2001:db8::7",
        ] {
            assert!(check(&egress, address).is_err(), "{address}");
        }
        for address in ["1.1.1.1", "10.0.0.7", "192.168.1.1", "172.16.0.1", "100.64.0.1", "168.63.129.17"] {
            for form in forms(address.parse().unwrap()) {
                assert_eq!(egress.check(form), Ok(()), "{address} as {form}");
            }
        }
        for address in ["fd00::1", "2001:db8::1", "fd00:ec2::1"] {
            assert_eq!(check(&egress, address), Ok(()), "{address}");
        }
    }

    #[test]
    fn flags_allow_and_refuse() {
        let nets = |text: &str| vec![text.parse().unwrap()];
        let open = known(Policy { allow: nets("127.0.0.0/8"), ..Policy::default() });
        assert!(check(&open, "127.0.0.1").is_ok() && check(&open, "::1").is_err());
        let shut = known(Policy { deny: nets("10.0.0.0/8"), allow: nets("10.0.0.0/8"), ..Policy::default() });
        let refused = check(&shut, "10.0.0.7").unwrap_err();
        assert_eq!(refused.of("10.0.0.7".parse().unwrap()).to_string(), "10.0.0.7 is refused: --hook-deny-cidr", "refusal wins");
        let (allow_hosts, deny_hosts) = (vec!["*.example.com".to_owned()], vec!["bad.example.com".to_owned()]);
        let hosts = Policy { allow_hosts, deny_hosts, ..Policy::default() };
        assert!(hosts.check_host("a.example.com").is_ok());
        assert!(hosts.check_host("BAD.example.com.").is_err());
        assert!(hosts.check_host("example.org").is_err());
    }

    #[test]
    fn nothing_is_reached_before_it_is_known_where_the_api_server_is() {
        let allow = vec!["10.0.0.0/24".parse().unwrap()];
        let egress = Egress::new(Policy { allow, ..Policy::default() }, Some("127.0.0.1:1".parse().unwrap())).unwrap();
        let refused = check(&egress, "1.1.1.1").unwrap_err().of("1.1.1.1".parse().unwrap()).to_string();
        assert!(refused.contains("1.1.1.1 is refused: it is not known yet where the API server is"), "{refused}");
        assert_eq!(check(&egress, "10.0.0.7"), Ok(()), "the administrator allowed it, whatever has it");
        egress.api_server_is_at(["::ffff:1.1.1.1".parse().unwrap()]);
        assert!(check(&egress, "1.1.1.1").is_err() && check(&egress, "1.1.1.2").is_ok());
    }

    #[test]
    fn the_addresses_of_nodes_come_and_go_with_them() {
        let egress = known(Policy::default());
        egress.see_nodes(&nodes(&[(&["10.1.0.1", "203.0.113.1"], &[]), (&["10.1.0.2"], &[])]));
        let refused = check(&egress, "203.0.113.1").unwrap_err().of("203.0.113.1".parse().unwrap()).to_string();
        assert_eq!(refused, "203.0.113.1 is refused: it is a node's; --hook-allow-cidr 203.0.113.1/32 would allow it");
        egress.see_nodes(&nodes(&[(&["10.1.0.2"], &[])]));
        assert!(check(&egress, "203.0.113.1").is_ok() && check(&egress, "10.1.0.2") == Err(Denied::Node));
        let allow = vec!["10.1.0.2/32".parse().unwrap()];
        let allowed = known(Policy { allow, ..Policy::default() });
        allowed.see_nodes(&nodes(&[(&["10.1.0.2"], &[])]));
        assert_eq!(check(&allowed, "10.1.0.2"), Ok(()));
    }

    #[test]
    fn a_hook_within_the_cluster_reaches_pods_services_and_what_the_administrator_names() {
        let allow = vec!["192.0.2.0/24".parse().unwrap()];
        let egress = known(Policy { reach: Reach::Cluster, allow, ..Policy::default() });
        egress.see_nodes(&nodes(&[(&["10.1.0.1"], &["10.244.0.0/24", "fd00:1::/64"]), (&["10.244.1.1"], &["10.244.1.0/24"])]));
        egress.services_are_in(["10.96.0.0/16".parse().unwrap()]);
        for address in ["10.244.0.7", "10.244.1.255", "fd00:1::7", "10.96.3.4", "192.0.2.9", "::ffff:10.244.0.7"] {
            assert_eq!(check(&egress, address), Ok(()), "{address}");
        }
        for address in ["10.244.2.1", "fd00:2::7", "10.97.0.1", "1.1.1.1", "10.96.0.1", "10.244.1.1", "169.254.169.254"] {
            assert!(check(&egress, address).is_err(), "{address}");
        }
        assert!(!egress.lacks_networks());
    }

    #[test]
    fn a_cluster_whose_networks_are_not_known_is_told() {
        let egress = known(Policy { reach: Reach::Cluster, ..Policy::default() });
        egress.see_nodes(&nodes(&[(&["10.1.0.1"], &[])]));
        assert!(egress.lacks_networks());
        assert_eq!(check(&egress, "10.244.0.7"), Err(Denied::ToAll(NO_NETWORKS)));
        egress.services_are_in(["10.96.0.0/16".parse().unwrap()]);
        assert!(!egress.lacks_networks() && check(&egress, "10.96.0.7").is_ok());
        assert!(!known(Policy::default()).lacks_networks());
    }

    #[tokio::test]
    async fn odd_spellings_of_an_address_are_seen_through() {
        let egress = known(Policy::default());
        egress.see_nodes(&nodes(&[(&["10.1.0.7"], &[])]));
        for url in [
            "http://2130706433/",
            "http://0x7f.1/",
            "http://127.1/",
            "http://[::ffff:7f00:1]/",
            "http://0177.0.0.1:80/",
            "http://1684301000/",
            "http://0xa83f8110/",
            "http://192.0.192/",
            "http://[::ffff:192.0.0.192]/",
            "http://[64:ff9b::a83f:8110]/",
            "http://[2002:6464:64c8::]/",
            "http://167837703/",
            "http://0xa.1.7/",
            "http://012.1.0.07/",
        ] {
            let places = egress.places(&Url::parse(url).unwrap()).await.unwrap();
            assert!(places.iter().all(|place| egress.check(place.ip()).is_err()) && places.len() == 1, "{url}: {places:?}");
        }
        let file = egress.places(&Url::parse("file:///etc/passwd").unwrap()).await.unwrap_err();
        assert!(file.to_string().contains("not http or https"));
    }
}
