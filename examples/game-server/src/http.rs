//! Just enough HTTP/1.1: one request per connection.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const MOST_HEAD: usize = 16 * 1024;
const MOST_BODY: usize = 1024 * 1024;

/// What was asked.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) body: Vec<u8>,
}

/// Reads one request; nothing if the peer speaks something else or too much.
pub(crate) fn read(stream: &mut TcpStream) -> io::Result<Option<Request>> {
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut bytes = Vec::new();
    let mut buffer = [0_u8; 4096];
    loop {
        let count = stream.read(&mut buffer)?;
        bytes.extend_from_slice(buffer.get(..count).unwrap_or_default());
        match parse(&bytes) {
            Parsed::Whole(request) => return Ok(Some(request)),
            Parsed::Part if count > 0 && bytes.len() <= MOST_HEAD + MOST_BODY => {}
            Parsed::Part | Parsed::Nonsense => return Ok(None),
        }
    }
}

enum Parsed {
    Whole(Request),
    Part,
    Nonsense,
}

fn parse(bytes: &[u8]) -> Parsed {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut request = httparse::Request::new(&mut headers);
    let head = match request.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if bytes.len() <= MOST_HEAD => return Parsed::Part,
        Ok(httparse::Status::Partial) | Err(_) => return Parsed::Nonsense,
    };
    let length = request.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"));
    let length = length.map_or(Some(0), |header| std::str::from_utf8(header.value).ok()?.parse::<usize>().ok());
    let Some(length) = length.filter(|length| *length <= MOST_BODY) else { return Parsed::Nonsense };
    let (Some(method), Some(target)) = (request.method, request.path) else { return Parsed::Nonsense };
    match bytes.get(head..head + length) {
        None => Parsed::Part,
        Some(body) => {
            let path = target.split(['?', '#']).next().unwrap_or_default().to_owned();
            Parsed::Whole(Request { method: method.to_owned(), path, body: body.to_vec() })
        }
    }
}

/// Answers and closes.
pub(crate) fn answer(stream: &mut TcpStream, status: &str, kind: &str, body: &[u8]) -> io::Result<()> {
    let head = format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)?;
    stream.flush()
}

/// Begins an answer without an end of its own: it lasts as long as the connection.
pub(crate) fn begin_stream(stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_whole_only_with_its_body() {
        let text = b"PUT /shm/a?x=1 HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc";
        assert!(matches!(parse(&text[..text.len() - 1]), Parsed::Part));
        let Parsed::Whole(request) = parse(text) else { panic!("not whole") };
        assert_eq!(request, Request { method: "PUT".into(), path: "/shm/a".into(), body: b"abc".to_vec() });
    }

    #[test]
    fn nonsense_and_giants_are_refused() {
        assert!(matches!(parse(b"\x16\x03\x01\x02\x00\x01"), Parsed::Nonsense));
        assert!(matches!(parse(b"PUT / HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n"), Parsed::Nonsense));
        assert!(matches!(parse(b"PUT / HTTP/1.1\r\nContent-Length: x\r\n\r\n"), Parsed::Nonsense));
    }
}
