//! A stand-in game server for the examples and tests.
//!
//! It serves its version and files over HTTP, keeps player sessions open, counts SIGTERM and SIGHUP, reads and writes
//! shared memory on request, says whether it is ready and, when told to stop, lets the players finish. `game-server
//! --help` lists what it answers to.

mod http;
mod server;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use server::{Options, Server};

const HELP: &str = "\
A stand-in game server.

Usage: game-server [--port PORT]
       game-server idle                 ends with 0 if the server on PORT has no session, with 1 if it has
       python -m http.server [PORT]     (when called python)

Answers to
  GET /            state as JSON: version, pid, sessions, signals, draining
  GET /version     the content of <root>/version, read at start and again on SIGHUP
  GET /files/PATH  a file below <root>
  GET /play        a session: one line a second until the player leaves or the server stops
  GET /readyz      200, or 503 while draining or after PUT /ready/no
  GET /healthz     200
  PUT /ready/yes   ready again;  PUT /ready/no  not ready
  PUT /shm/NAME    keeps the request's body in shared memory;  GET /shm/NAME  gives it back

SIGHUP loads the version anew. SIGTERM drains: not ready, no new sessions, and the end when the last player has left or the drain time is over.

Environment
  PORT             the port [8000]
  GAME_ROOT        the folder of version and files [/srv]
  GAME_SHM         the folder of the shared memory [/dev/shm]
  GAME_DRAIN       seconds that players may stay after SIGTERM [10]
";

fn main() -> ExitCode {
    let mut arguments = std::env::args();
    let program = arguments.next().unwrap_or_default();
    let arguments: Vec<String> = arguments.collect();
    if arguments == ["idle"] {
        return is_idle(std::env::var("PORT").as_deref().unwrap_or("8000"));
    }
    let options = match Options::read(&program, &arguments, |name| std::env::var(name).ok()) {
        Ok(Some(options)) => options,
        Ok(None) => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(problem) => {
            eprintln!("game-server: {problem}\nTry --help.");
            return ExitCode::from(2);
        }
    };
    match Server::start(options).and_then(|server| wait_for_signals(&Arc::new(server))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("game-server: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Asks the server on this port whether anybody plays.
fn is_idle(port: &str) -> ExitCode {
    let ask = || {
        let mut server = TcpStream::connect(format!("127.0.0.1:{port}"))?;
        server.set_read_timeout(Some(Duration::from_secs(5)))?;
        server.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
        let mut state = String::new();
        server.read_to_string(&mut state)?;
        Ok::<_, std::io::Error>(state.contains("\"sessions\":0,"))
    };
    match ask() {
        Ok(idle) => {
            println!("{}", if idle { "no player is in" } else { "players are in" });
            if idle { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("game-server: cannot ask the server on port {port}: {error}");
            ExitCode::from(2)
        }
    }
}

fn wait_for_signals(server: &Arc<Server>) -> std::io::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGHUP, SIGINT, SIGTERM])?;
    let accepting = Arc::clone(server);
    std::thread::spawn(move || accepting.accept());
    for signal in signals.forever() {
        match signal {
            SIGHUP => server.reload(),
            SIGINT => return Ok(()),
            _ => server.drain(),
        }
        if server.is_draining() {
            // A second SIGTERM, as a kubelet may send, is counted while the first is honoured.
            let waiting = Arc::clone(server);
            std::thread::spawn(move || {
                waiting.wait_for_players();
                std::process::exit(0);
            });
        }
    }
    Ok(())
}
