//! The network: a switch (bridge), veth pairs to the host and to each node, and routes to the pods.

use std::net::{IpAddr, Ipv4Addr};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process::Command;

use crate::controlplane::{Addresses, ReservedPort};
use crate::error::{Error, Result};
use crate::process::run;
use crate::real::RealNode;
use crate::real::node::Namespaces;
use crate::registry::static_program;
use crate::rundir::RunDir;

/// The second byte of the subnets 10.N.0.0/16 that clusters choose from.
const FIRST_SUBNET: u8 = 180;
const LAST_SUBNET: u8 = 219;

/// The network of one cluster.
#[derive(Debug)]
pub(crate) struct Network {
    subnet: u8,
    switch: Namespaces,
    _reservation: UnixListener,
}

impl Network {
    /// Takes a free subnet and connects the host to a new switch.
    pub(crate) fn create(run_dir: &RunDir) -> Result<Self> {
        let (subnet, reservation) = free_subnet()?;
        let init = static_program("pause")?;
        let switch = Namespaces::hold(run_dir, "switch", &["--net"], "exec \"$1\"", &init, run_dir.path())?;
        let network = Self { subnet, switch, _reservation: reservation };
        let interface = format!("localkube{subnet}");
        ip(&["link", "add", &interface, "type", "veth", "peer", "name", "host", "netns", &network.switch.pid().to_string()])?;
        ip(&["addr", "add", &format!("{}/24", network.host()), "dev", &interface])?;
        ip(&["link", "set", &interface, "up"])?;
        for words in ["link add switch type bridge", "link set switch up", "link set host master switch", "link set host up"] {
            network.switch.ip(words)?;
        }
        Ok(network)
    }

    /// The host's address, where the API server, the registry and DNS listen.
    pub(crate) fn host(&self) -> IpAddr {
        self.address(255, 1)
    }

    pub(crate) fn node(&self, number: u32) -> IpAddr {
        self.address(255, 10_u8.saturating_add(small(number)))
    }

    pub(crate) fn pods(&self, number: u32) -> String {
        format!("{}/24", self.address(small(number), 0))
    }

    pub(crate) fn all_pods(&self) -> String {
        format!("{}/17", self.address(0, 0))
    }

    pub(crate) fn addresses(&self) -> Addresses {
        Addresses { api: self.host(), services: format!("{}/20", self.address(128, 0)), first_service: self.address(128, 1) }
    }

    /// A free port for the registry. It stays free, because only localkube uses the host's address on the switch.
    pub(crate) fn registry_port(&self) -> Result<u16> {
        ReservedPort::take(self.host(), None).map(|reserved| reserved.port)
    }

    fn address(&self, third: u8, fourth: u8) -> IpAddr {
        Ipv4Addr::new(10, self.subnet, third, fourth).into()
    }

    /// Connects a node to the switch and assigns its address.
    pub(crate) fn connect(&self, number: u32, node: &Namespaces) -> Result<()> {
        let port = port(number);
        self.switch.ip(&format!("link add {port} type veth peer name eth0 netns {}", node.pid()))?;
        self.switch.ip(&format!("link set {port} master switch"))?;
        self.switch.ip(&format!("link set {port} up"))?;
        node.ip("link set lo up")?;
        node.ip(&format!("addr add {}/24 dev eth0", self.node(number)))?;
        node.ip("link set eth0 up")?;
        node.ip(&format!("route add default via {}", self.host()))?;
        let mut forward = Command::new("sh");
        forward.args(["-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]);
        run(&mut node.enter_network(&forward)).map(drop)
    }

    /// Adds routes to every node's pods, on the host and on the other nodes.
    pub(crate) fn connect_pods(&self, nodes: &[RealNode]) -> Result<()> {
        for target in nodes {
            let route = format!("route add {} via {}", self.pods(target.number()), self.node(target.number()));
            ip(&route.split(' ').collect::<Vec<_>>())?;
            for node in nodes.iter().filter(|node| node.number() != target.number()) {
                node.namespaces().ip(&route)?;
            }
        }
        Ok(())
    }

    /// Sets a node's link up or down.
    pub(crate) fn set_link(&self, number: u32, up: bool) -> Result<()> {
        self.switch.ip(&format!("link set {} {}", port(number), if up { "up" } else { "down" }))
    }
}

/// The switch's interface to a node.
fn port(number: u32) -> String {
    format!("node{number}")
}

fn small(number: u32) -> u8 {
    u8::try_from(number).unwrap_or(u8::MAX)
}

fn ip(words: &[&str]) -> Result<()> {
    run(Command::new("ip").args(words)).map(drop)
}

/// The first subnet that no other cluster uses and that the host has no route to. It is reserved with an abstract
/// socket, which all processes in this network namespace see and the kernel frees.
fn free_subnet() -> Result<(u8, UnixListener)> {
    let routes = run(Command::new("ip").args(["-4", "route", "show", "table", "all"]))?;
    let reserve = |subnet: u8| {
        let name = SocketAddr::from_abstract_name(format!("localkube-subnet-{subnet}"))?;
        UnixListener::bind_addr(&name)
    };
    (FIRST_SUBNET..=LAST_SUBNET)
        .filter(|subnet| !routes.contains(&format!("10.{subnet}.")))
        .find_map(|subnet| reserve(subnet).ok().map(|reservation| (subnet, reservation)))
        .ok_or_else(|| Error::Invalid(format!("all of 10.{FIRST_SUBNET}.0.0 to 10.{LAST_SUBNET}.255.255 is in use: stop a cluster first")))
}
