// SPDX-License-Identifier: MIT OR Apache-2.0
//! `GET /metrics`, by hyper.
//!
//! A page costs work, and whoever reaches the port may ask for it. So everything is bounded:
//! connections at a time, one request per connection, the size of its head (its body is not read),
//! the time it may take, and how often a page is made: once per update, however many ask.

use super::{Figures, Served};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, oneshot};

/// Connections at a time; more wait in the kernel's queue.
const CONNECTIONS: usize = 16;
/// Bytes of a request's head.
const HEAD: usize = 16 << 10;
/// For the head of the request, and for all of it.
const HEAD_TIME: Duration = Duration::from_secs(5);
const TIME: Duration = Duration::from_secs(10);

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Why metrics cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve metrics at {address}: {source}")]
pub struct Error {
    pub address: SocketAddr,
    pub source: std::io::Error,
}

/// The latest figures, and their page once somebody asked for it.
#[derive(Default)]
struct Latest {
    figures: Option<Box<dyn Figures>>,
    page: Option<Bytes>,
    served: Served,
}

/// Serves metrics from a thread of its own until it is dropped.
pub struct Server {
    address: SocketAddr,
    latest: Arc<Mutex<Latest>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens at `address`; port 0 picks a free one. Connections wait until the server starts, so
    /// rights that this takes can be given up in between.
    ///
    /// # Errors
    /// When the address is taken, not this machine's, or not for this user.
    pub fn listen(address: SocketAddr) -> Result<std::net::TcpListener, Error> {
        std::net::TcpListener::bind(address).map_err(|source| Error { address, source })
    }

    /// Serves on `listener`.
    ///
    /// # Errors
    /// When there is no thread or file descriptor left for it.
    pub fn start(listener: std::net::TcpListener) -> Result<Server, Error> {
        let unknown = SocketAddr::from(([0, 0, 0, 0], 0));
        let address = listener.local_addr().map_err(|source| Error { address: unknown, source })?;
        let failed = |source| Error { address, source };
        listener.set_nonblocking(true).map_err(failed)?;
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let listener = {
            let _inside = runtime.enter();
            TcpListener::from_std(listener).map_err(failed)?
        };
        let latest = Arc::new(Mutex::new(Latest::default()));
        let (stop, stopped) = oneshot::channel();
        let shared = latest.clone();
        let thread = std::thread::Builder::new()
            .name("metrics".into())
            .spawn(move || {
                runtime.spawn(serve(listener, shared));
                // An error is what dropping the sender gives.
                let _ = runtime.block_on(stopped);
                // Requests under way end with it.
                runtime.shutdown_background();
            })
            .map_err(failed)?;
        Ok(Server { address, latest, stop: Some(stop), thread: Some(thread) })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves `figures` from now on.
    pub fn update(&self, figures: impl Figures + 'static) {
        let mut latest = self.latest.lock().unwrap_or_else(|e| e.into_inner());
        latest.figures = Some(Box::new(figures));
        latest.page = None;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn serve(listener: TcpListener, latest: Arc<Mutex<Latest>>) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(slot) = slots.clone().acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            // Out of file descriptors, or the peer gave up: neither is a reason to stop.
            Err(_) => {
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let latest = latest.clone();
        tokio::spawn(async move {
            let service = service_fn(|request| {
                std::future::ready(Ok::<_, Infallible>(answer(&request, &latest)))
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIME)
                .max_buf_size(HEAD)
                .keep_alive(false)
                .serve_connection(TokioIo::new(stream), service);
            // An error of a connection concerns only its peer.
            let _ = tokio::time::timeout(TIME, connection).await;
            drop(slot);
        });
    }
}

fn answer(request: &Request<Incoming>, latest: &Mutex<Latest>) -> Response<Full<Bytes>> {
    match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/metrics") => match page(latest) {
            Ok(Some(page)) => reply(StatusCode::OK, OPEN_METRICS, page),
            Ok(None) => say(StatusCode::SERVICE_UNAVAILABLE, "no figures yet\n"),
            Err(_) => say(StatusCode::INTERNAL_SERVER_ERROR, "the metrics cannot be written\n"),
        },
        (&Method::GET | &Method::HEAD, "/") => say(StatusCode::OK, "reprieve: see /metrics\n"),
        (&Method::GET | &Method::HEAD, _) => say(StatusCode::NOT_FOUND, "see /metrics\n"),
        _ => {
            let mut response = say(StatusCode::METHOD_NOT_ALLOWED, "GET only\n");
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            response
        }
    }
}

fn page(latest: &Mutex<Latest>) -> Result<Option<Bytes>, std::fmt::Error> {
    let mut latest = latest.lock().unwrap_or_else(|e| e.into_inner());
    let Latest { figures, page, served } = &mut *latest;
    if let (None, Some(figures)) = (&page, figures) {
        *page = Some(super::text(figures.as_ref(), served)?.into());
    }
    Ok(page.clone())
}

fn say(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    reply(status, "text/plain; charset=utf-8", Bytes::from_static(text.as_bytes()))
}

fn reply(status: StatusCode, kind: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::testing::busy;
    use std::io::{Read, Write};
    use std::net::TcpStream;

    fn start() -> Server {
        Server::start(Server::listen(([127, 0, 0, 1], 0).into()).unwrap()).unwrap()
    }

    /// The server hangs up on who gets no CPU for some seconds: asked again.
    fn ask(server: &Server, request: &[u8]) -> String {
        loop {
            let answer = ask_once(server, request);
            if !answer.is_empty() {
                return answer;
            }
        }
    }

    fn ask_once(server: &Server, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        let _ = stream.write_all(request);
        let mut answer = vec![];
        // A server that refuses may reset the connection after its answer.
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    #[test]
    fn the_latest_snapshot_is_served() {
        let server = start();
        let get = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
        assert!(ask(&server, get).starts_with("HTTP/1.1 503"));
        server.update(busy(1));
        let first = ask(&server, get);
        assert!(
            first.starts_with("HTTP/1.1 200 OK") && first.contains("application/openmetrics-text"),
            "{first}"
        );
        assert!(first.contains("reprieve_grace_period_seconds_count{vm=\"db-primary\"} 55\n"));
        server.update(busy(2));
        assert!(
            ask(&server, get)
                .contains("reprieve_grace_period_seconds_count{vm=\"db-primary\"} 110\n")
        );
    }

    #[test]
    fn other_requests_are_refused() {
        let server = start();
        assert!(ask(&server, b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n").starts_with("HTTP/1.1 404"));
        assert!(
            ask(&server, b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello")
                .starts_with("HTTP/1.1 405")
        );
        assert!(ask(&server, b"\x16\x03\x01 not HTTP\r\n\r\n").starts_with("HTTP/1.1 400"));
        let mut long = b"GET /metrics HTTP/1.1\r\nX: ".to_vec();
        long.extend(std::iter::repeat_n(b'a', 4 * HEAD));
        let answer = ask_once(&server, &long);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    }

    #[test]
    fn silent_connections_keep_nobody_out() {
        let server = start();
        server.update(busy(1));
        let silent: Vec<TcpStream> =
            (0..CONNECTIONS + 4).map(|_| TcpStream::connect(server.address()).unwrap()).collect();
        let answer = ask(&server, b"GET /metrics HTTP/1.0\r\n\r\n");
        assert!(answer.contains(" 200 OK"), "{answer}");
        // The server gives up each silent connection: all of them end, though none sent anything.
        for mut stream in silent {
            let _ = stream.read_to_end(&mut vec![]);
        }
    }
}
