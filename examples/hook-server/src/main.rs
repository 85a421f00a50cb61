//! A web server that hooks can ask, as in the walk-through of the stepwise rollout:
//! `{"name":"bryan","male":"yes","age":45}`.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

const HELP: &str = "\
A web server that hooks can ask.

Usage: hook-server [--listen ADDRESS:PORT] [--age AGE]

Answers to
  GET /        {\"name\":\"bryan\",\"male\":\"yes\",\"age\":45}
  PUT /age/N   makes the age N

  --listen ADDRESS:PORT   where it listens [0.0.0.0:9091]
  --age AGE               the age it says at first [45]
";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hook-server: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let (mut listen, mut age) = ("0.0.0.0:9091".to_owned(), 45);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
        match argument.as_str() {
            "--listen" => listen = value()?,
            "--age" => age = value()?.parse().map_err(|_| "--age needs a whole number".to_owned())?,
            "--help" | "-h" => {
                print!("{HELP}");
                return Ok(());
            }
            other => return Err(format!("{other} is not known; see --help")),
        }
    }
    let listener = TcpListener::bind(&listen).map_err(|error| format!("cannot listen on {listen}: {error}"))?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    println!("listening on {address}");
    let age = Arc::new(AtomicI64::new(age));
    for stream in listener.incoming().flatten() {
        let age = Arc::clone(&age);
        std::thread::spawn(move || {
            // A client that goes away is its own affair.
            let _ = serve(stream, &age);
        });
    }
    Ok(())
}

fn serve(mut stream: TcpStream, age: &AtomicI64) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut bytes = Vec::new();
    let mut chunk = [0; 1024];
    let (method, path) = loop {
        let read = stream.read(&mut chunk)?;
        bytes.extend_from_slice(chunk.get(..read).unwrap_or_default());
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(&bytes) {
            Ok(httparse::Status::Complete(_)) => {
                break (request.method.unwrap_or_default().to_owned(), request.path.unwrap_or_default().to_owned());
            }
            Ok(httparse::Status::Partial) if read > 0 && bytes.len() < 64 * 1024 => {}
            Ok(httparse::Status::Partial) | Err(_) => return Ok(()),
        }
    };
    let (status, body) = answer(&method, &path, age);
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

fn answer(method: &str, path: &str, age: &AtomicI64) -> (&'static str, String) {
    let new = path.strip_prefix("/age/").and_then(|text| text.parse().ok());
    match (method, new) {
        ("PUT", Some(new)) => age.store(new, Ordering::Relaxed),
        ("GET", None) => {}
        _ => return ("404 Not Found", r#"{"error":"GET / or PUT /age/N"}"#.to_owned()),
    }
    ("200 OK", format!(r#"{{"name":"bryan","male":"yes","age":{}}}"#, age.load(Ordering::Relaxed)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_the_age_and_can_be_told_another() {
        let age = AtomicI64::new(45);
        assert_eq!(answer("GET", "/", &age).1, r#"{"name":"bryan","male":"yes","age":45}"#);
        assert_eq!(answer("PUT", "/age/32", &age).1, r#"{"name":"bryan","male":"yes","age":32}"#);
        assert_eq!(answer("DELETE", "/", &age).0, "404 Not Found");
    }
}
