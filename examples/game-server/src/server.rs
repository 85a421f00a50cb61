//! The server's state and what it answers.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::http::{self, Request};

/// How the server is set up.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) port: u16,
    pub(crate) root: PathBuf,
    pub(crate) shared_memory: PathBuf,
    pub(crate) drain: Duration,
}

impl Options {
    /// From the command line and the environment; nothing if help was asked for.
    pub(crate) fn read(program: &str, arguments: &[String], variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, String> {
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let called_python = Path::new(program).file_name().is_some_and(|name| name.to_string_lossy().starts_with("python"));
        let port = match words.as_slice() {
            ["--help" | "-h"] => return Ok(None),
            [] => None,
            ["--port", port] => Some((*port).to_owned()),
            ["-m", "http.server"] if called_python => None,
            ["-m", "http.server", port] if called_python => Some((*port).to_owned()),
            other => return Err(format!("cannot make sense of {other:?}")),
        };
        let number = |name: &str, text: Option<String>, default: u16| match text {
            None => Ok(default),
            Some(text) => text.parse::<u16>().map_err(|_| format!("{name} must be a number up to 65535, not {text:?}")),
        };
        Ok(Some(Self {
            port: number("the port", port.or_else(|| variable("PORT")), 8000)?,
            root: variable("GAME_ROOT").unwrap_or_else(|| "/srv".to_owned()).into(),
            shared_memory: variable("GAME_SHM").unwrap_or_else(|| "/dev/shm".to_owned()).into(),
            drain: Duration::from_secs(number("GAME_DRAIN", variable("GAME_DRAIN"), 10)?.into()),
        }))
    }
}

/// A running server.
#[derive(Debug)]
pub(crate) struct Server {
    options: Options,
    listener: TcpListener,
    version: Mutex<String>,
    sessions: Mutex<u64>,
    player_left: Condvar,
    terms: AtomicU64,
    hangups: AtomicU64,
    ready: AtomicBool,
    draining: AtomicBool,
}

impl Server {
    pub(crate) fn start(options: Options) -> io::Result<Self> {
        let listener = TcpListener::bind(SocketAddr::from(([0, 0, 0, 0], options.port)))?;
        let server = Self {
            version: Mutex::new(read_version(&options.root)),
            options,
            listener,
            sessions: Mutex::new(0),
            player_left: Condvar::new(),
            terms: AtomicU64::new(0),
            hangups: AtomicU64::new(0),
            ready: AtomicBool::new(true),
            draining: AtomicBool::new(false),
        };
        println!("serving version {} on port {}", lock(&server.version), server.listener.local_addr()?.port());
        Ok(server)
    }

    /// Answers requests, each on a thread of its own, for ever.
    pub(crate) fn accept(self: &Arc<Self>) {
        for stream in self.listener.incoming().flatten() {
            let server = Arc::clone(self);
            std::thread::spawn(move || server.serve(stream));
        }
    }

    pub(crate) fn reload(&self) {
        self.hangups.fetch_add(1, Ordering::SeqCst);
        let version = read_version(&self.options.root);
        println!("reloaded: version {version}");
        *lock(&self.version) = version;
    }

    pub(crate) fn drain(&self) {
        self.terms.fetch_add(1, Ordering::SeqCst);
        self.draining.store(true, Ordering::SeqCst);
        println!("draining: {} players", lock(&self.sessions));
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// Returns when the last player has left or the drain time is over.
    pub(crate) fn wait_for_players(&self) {
        let waiting = lock(&self.sessions);
        let rest = self.player_left.wait_timeout_while(waiting, self.options.drain, |sessions| *sessions > 0);
        println!("stopping: {} players left", rest.map_or(0, |(sessions, _)| *sessions));
    }

    fn serve(&self, mut stream: TcpStream) {
        // A peer that goes away in the middle is its own concern.
        if let Ok(Some(request)) = http::read(&mut stream) {
            let _ = self.respond(&mut stream, &request);
        }
    }

    fn respond(&self, stream: &mut TcpStream, request: &Request) -> io::Result<()> {
        let mut text = |status: &str, body: &[u8]| http::answer(stream, status, "text/plain", body);
        match (request.method.as_str(), request.path.as_str()) {
            ("GET", "/") => http::answer(stream, "200 OK", "application/json", self.state().as_bytes()),
            ("GET", "/version") => text("200 OK", lock(&self.version).as_bytes()),
            ("GET", "/healthz") => text("200 OK", b"ok\n"),
            ("GET", "/readyz") if self.is_ready() => text("200 OK", b"ready\n"),
            ("GET", "/readyz") => text("503 Service Unavailable", b"not ready\n"),
            ("GET", "/play") if self.is_draining() => text("503 Service Unavailable", b"draining\n"),
            ("GET", "/play") => self.play(stream),
            ("PUT", "/ready/yes") => {
                self.ready.store(true, Ordering::SeqCst);
                text("200 OK", b"ready\n")
            }
            ("PUT", "/ready/no") => {
                self.ready.store(false, Ordering::SeqCst);
                text("200 OK", b"not ready\n")
            }
            (method, path) => self.respond_with_file(stream, method, path, &request.body),
        }
    }

    fn respond_with_file(&self, stream: &mut TcpStream, method: &str, path: &str, body: &[u8]) -> io::Result<()> {
        let file = match path.split_once('/').and_then(|(_, path)| path.split_once('/')) {
            Some(("files", name)) if method == "GET" => inside(&self.options.root, name),
            Some(("shm", name)) if matches!(method, "GET" | "PUT") => inside(&self.options.shared_memory, name),
            _ => None,
        };
        let Some(file) = file else { return http::answer(stream, "404 Not Found", "text/plain", b"not found\n") };
        let result = if method == "PUT" { std::fs::write(&file, body).map(|()| b"kept\n".to_vec()) } else { std::fs::read(&file) };
        match result {
            Ok(content) => http::answer(stream, "200 OK", "application/octet-stream", &content),
            Err(error) => http::answer(stream, "404 Not Found", "text/plain", format!("{error}\n").as_bytes()),
        }
    }

    fn is_ready(&self) -> bool {
        self.ready.load(Ordering::SeqCst) && !self.is_draining()
    }

    fn state(&self) -> String {
        format!(
            "{{\"version\":{:?},\"pid\":{},\"sessions\":{},\"sigterm\":{},\"sighup\":{},\"ready\":{},\"draining\":{}}}\n",
            *lock(&self.version),
            std::process::id(),
            lock(&self.sessions),
            self.terms.load(Ordering::SeqCst),
            self.hangups.load(Ordering::SeqCst),
            self.is_ready(),
            self.is_draining(),
        )
    }

    /// One player: a line a second until the player leaves.
    fn play(&self, stream: &mut TcpStream) -> io::Result<()> {
        *lock(&self.sessions) += 1;
        let result = self.keep_playing(stream);
        *lock(&self.sessions) -= 1;
        self.player_left.notify_all();
        result
    }

    fn keep_playing(&self, stream: &mut TcpStream) -> io::Result<()> {
        http::begin_stream(stream)?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        let started = Instant::now();
        loop {
            writeln!(stream, "{} s on version {}", started.elapsed().as_secs(), *lock(&self.version))?;
            match stream.read(&mut [0; 64]) {
                Ok(0) => return Ok(()),
                Err(error) if !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => return Err(error),
                Ok(_) | Err(_) => {}
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read_version(root: &Path) -> String {
    std::fs::read_to_string(root.join("version")).map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}

/// A path below `folder`, or nothing if the name would leave it.
fn inside(folder: &Path, name: &str) -> Option<PathBuf> {
    let name = Path::new(name);
    let plain = name.components().all(|part| matches!(part, Component::Normal(_)));
    (plain && name.components().next().is_some()).then(|| folder.join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(program: &str, arguments: &[&str]) -> Result<Option<Options>, String> {
        let arguments: Vec<String> = arguments.iter().map(|word| (*word).to_owned()).collect();
        Options::read(program, &arguments, |_| None)
    }

    fn server(root: &Path) -> (Arc<Server>, SocketAddr) {
        let options = Options { port: 0, root: root.to_owned(), shared_memory: root.to_owned(), drain: Duration::from_secs(5) };
        let server = Arc::new(Server::start(options).unwrap());
        let port = server.listener.local_addr().unwrap().port();
        let accepting = Arc::clone(&server);
        std::thread::spawn(move || accepting.accept());
        (server, SocketAddr::from(([127, 0, 0, 1], port)))
    }

    fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn get(address: SocketAddr, path: &str) -> String {
        ask(address, &format!("GET {path} HTTP/1.1\r\n\r\n"))
    }

    #[test]
    fn it_answers_to_the_commands_of_the_examples() {
        assert_eq!(read("python", &["-m", "http.server", "8123"]).unwrap().unwrap().port, 8123);
        assert_eq!(read("/usr/local/bin/python", &["-m", "http.server"]).unwrap().unwrap().port, 8000);
        assert_eq!(read("/main", &[]).unwrap().unwrap().port, 8000);
        assert!(read("/main", &["-m", "http.server"]).is_err(), "only python is python");
        assert!(read("/main", &["--port", "x"]).unwrap_err().contains("65535"));
        assert_eq!(read("/main", &["--help"]).unwrap(), None);
    }

    #[test]
    fn a_reload_serves_the_new_version_and_is_counted() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("version"), "v1\n").unwrap();
        let (server, address) = server(root.path());
        assert!(get(address, "/version").ends_with("\r\n\r\nv1"));
        std::fs::write(root.path().join("version"), "v2\n").unwrap();
        assert!(get(address, "/version").ends_with("v1"), "a running server keeps its version");
        server.reload();
        assert!(get(address, "/version").ends_with("v2"));
        assert!(get(address, "/").contains("\"sighup\":1"));
    }

    #[test]
    fn files_and_shared_memory_stay_inside_their_folders() {
        let root = tempfile::tempdir().unwrap();
        let (_server, address) = server(root.path());
        assert!(ask(address, "PUT /shm/score HTTP/1.1\r\nContent-Length: 2\r\n\r\n42").contains("200 OK"));
        assert!(get(address, "/shm/score").ends_with("42"));
        assert!(get(address, "/files/score").ends_with("42"));
        for path in ["/files/../etc/passwd", "/files/", "/files//etc/passwd", "/shm/a/../../b", "/nothing"] {
            assert!(get(address, path).contains("404"), "{path}");
        }
    }

    #[test]
    fn readiness_can_be_switched_off_and_on() {
        let root = tempfile::tempdir().unwrap();
        let (_server, address) = server(root.path());
        assert!(get(address, "/readyz").contains("200"));
        ask(address, "PUT /ready/no HTTP/1.1\r\n\r\n");
        assert!(get(address, "/readyz").contains("503"));
        assert!(get(address, "/healthz").contains("200"), "not ready is not dead");
        ask(address, "PUT /ready/yes HTTP/1.1\r\n\r\n");
        assert!(get(address, "/readyz").contains("200"));
    }

    #[test]
    fn draining_refuses_new_players_and_waits_for_those_inside() {
        let root = tempfile::tempdir().unwrap();
        let (server, address) = server(root.path());
        let mut player = TcpStream::connect(address).unwrap();
        player.write_all(b"GET /play HTTP/1.1\r\n\r\n").unwrap();
        let mut first = [0; 16];
        player.read_exact(&mut first).unwrap();
        server.drain();
        assert!(get(address, "/play").contains("503"));
        assert!(get(address, "/readyz").contains("503"));
        assert!(get(address, "/").contains("\"sessions\":1"));
        let waiting = std::thread::spawn(move || server.wait_for_players());
        drop(player);
        waiting.join().unwrap();
        assert!(get(address, "/").contains("\"sessions\":0"));
    }
}
