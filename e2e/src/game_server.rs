//! Talking to the game server of a pod on a real node, from the host.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;

use crate::pod::ip;

/// Sends a request and returns the body of the response.
pub fn ask(pod: &Pod, request: &str) -> Result<String> {
    let mut stream = TcpStream::connect((ip(pod)?.as_str(), 8000))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or(answer))
}

/// The body of the response to a GET of this path.
pub fn get(pod: &Pod, path: &str) -> Result<String> {
    ask(pod, &format!("GET {path} HTTP/1.1\r\n\r\n"))
}

/// A player's session, which lasts until it is dropped.
pub fn play(pod: &Pod) -> Result<BufReader<TcpStream>> {
    let mut player = TcpStream::connect((ip(pod)?.as_str(), 8000))?;
    player.write_all(b"GET /play HTTP/1.1\r\n\r\n")?;
    let mut lines = BufReader::new(player);
    let mut line = String::new();
    while !line.starts_with("0 s") {
        line.clear();
        ensure!(lines.read_line(&mut line)? > 0, "the session did not start");
    }
    Ok(lines)
}
