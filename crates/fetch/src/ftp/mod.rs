//! FTP and FTPS for downloads: a control connection that fetches one range after the other.
//!
//! `REST` comes right before `RETR`. The address in a `PASV` reply is ignored, because servers behind NAT send private ones:
//! data comes from the server that is already connected. After a transfer that was cut off the control connection is
//! closed, so that no stale reply is taken for an answer.
//!
//! Size and time of change are the only signs of a file's version. They are asked before each range and once more after the
//! last one.

mod reply;

use std::io;
use std::ops::Range;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::http::validator::Validator;
use crate::peers::Peers;
use crate::plan::Trouble;
use crate::route::{Route, Wire};
use crate::tls::{Tls, trouble};
use crate::url::{Scheme, Url};
use reply::Reply;

/// How long a server may take to reply.
const ANSWER: Duration = Duration::from_secs(30);
/// How long the last reply after a transfer may take.
const LAST: Duration = Duration::from_secs(2);
/// How long a server that answers commands may take to accept a data connection.
const DATA: Duration = Duration::from_secs(5);
/// Bytes read at once.
const PIECE: usize = 64 << 10;

/// A control connection, opened when it is needed.
#[derive(Debug)]
pub struct FtpConnection {
    route: Route,
    tls: Tls,
    peers: Peers,
    open: Option<Control>,
}

/// A file on a server: its properties, and its bytes.
#[derive(Debug)]
pub struct FtpAnswer {
    /// Where the bytes begin.
    pub start: u64,
    /// The size of the file.
    pub size: Option<u64>,
    /// Whether the server can begin within the file.
    pub is_part: bool,
    /// The version of the file.
    pub version: Validator,
    /// The bytes.
    pub body: FtpBody,
}

/// Bytes of a transfer.
pub struct FtpBody {
    data: Wire,
    buffer: BytesMut,
    /// Bytes that are wanted; the server sends all up to the end of the file.
    left: u64,
}

/// An open control connection, logged in.
struct Control {
    wire: Wire,
    buffer: BytesMut,
    server: Url,
    /// The host of data connections: this machine, where the server's name has several.
    host: String,
    /// Whether data connections are encrypted.
    is_private: bool,
    /// EPSV was refused or does not work.
    lacks_extended: bool,
    /// Whether it accepts REST, once that is known.
    begins_anywhere: Option<bool>,
    /// A transfer has begun, and the reply that ends it was not read.
    is_sending: bool,
}

/// The state of a file on a server.
#[derive(Debug)]
pub struct FtpState {
    /// Its size, if the server says so.
    pub size: Option<u64>,
    /// Its version.
    pub version: Validator,
}

impl FtpBody {
    /// The next bytes; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, String> {
        if self.left == 0 {
            return Ok(None);
        }
        self.buffer.reserve(PIECE);
        match self.data.read_buf(&mut self.buffer).await {
            Ok(0) => Ok(None),
            Ok(_) => {
                let mut bytes = self.buffer.split().freeze();
                // It fits: at most the length of the piece is kept.
                bytes.truncate(self.left.min(bytes.len() as u64) as usize);
                self.left -= bytes.len() as u64;
                Ok(Some(bytes))
            }
            // Some servers end TLS without saying so; the number of bytes shows whether any are missing.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }
}

impl std::fmt::Debug for FtpBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FtpBody").field("left", &self.left).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control").field("server", &self.server).finish_non_exhaustive()
    }
}

impl FtpConnection {
    /// A connection that is not open yet.
    pub fn new(route: Route, tls: Tls, peers: Peers) -> Self {
        Self { route, tls, peers, open: None }
    }

    /// Closes the control connection.
    pub fn close(&mut self) {
        self.open = None;
    }

    /// Asks for a range of a file; everything without.
    pub async fn get(&mut self, url: &Url, range: Option<Range<u64>>) -> Result<FtpAnswer, Trouble> {
        if let Some(control) = self.open.take()
            && let Ok(answer) = self.transfer(control, url, range.clone()).await
        {
            return Ok(answer);
        }
        // The server may have closed a control connection that was idle, or reply to what was cut off.
        let control = self.log_in(url).await?;
        self.transfer(control, url, range).await
    }

    async fn transfer(
        &mut self,
        mut control: Control,
        url: &Url,
        range: Option<Range<u64>>,
    ) -> Result<FtpAnswer, Trouble> {
        let path = path_of(url)?;
        let FtpState { size, version } = control.state(&path).await?;
        let start = range.as_ref().map_or(0, |range| range.start);
        let end = range.as_ref().map(|range| range.end).or(size).unwrap_or(u64::MAX);
        if size.is_some_and(|size| start > 0 && start >= size) {
            return Err(Trouble::Failed("the file on the server is shorter now".to_owned()));
        }
        let is_part = range.is_some() && control.begins_anywhere().await?;
        let end = if is_part { end } else { size.unwrap_or(u64::MAX) };
        if start > 0 && !is_part {
            return Err(Trouble::Failed("the server cannot begin within a file".to_owned()));
        }
        let data = control.open_data(&self.route).await?;
        if start > 0 {
            let rest = control.ask(&format!("REST {start}")).await?;
            if rest.code != 350 {
                return Err(Trouble::Failed("the server cannot begin within a file".to_owned()));
            }
        }
        let begun = control.ask(&format!("RETR {path}")).await?;
        match begun.code {
            100..=199 => {}
            550 | 553 => {
                return Err(Trouble::Useless(format!("the server does not send the file ({})", begun.code)));
            }
            code => return Err(busy_or(code, "the server does not begin to send")),
        }
        let data = if control.is_private {
            let encrypted = self.tls.other(data, url.host()).await;
            Box::new(encrypted.map_err(|error| trouble(&error))?)
        } else {
            data
        };
        let body = FtpBody { data, buffer: BytesMut::new(), left: end - start };
        control.is_sending = true;
        self.open = Some(control);
        Ok(FtpAnswer { start, size, is_part, version, body })
    }

    /// Asks for the state of a file, without its bytes.
    pub async fn state(&mut self, url: &Url) -> Result<FtpState, Trouble> {
        let path = path_of(url)?;
        self.end().await;
        if let Some(mut control) = self.open.take()
            && let Ok(state) = control.state(&path).await
        {
            self.open = Some(control);
            return Ok(state);
        }
        let control = self.log_in(url).await?;
        self.open.insert(control).state(&path).await
    }

    /// Reads the reply that ends a transfer, if there was one; closes the connection if it does not come.
    pub async fn end(&mut self) {
        if let Some(control) = &mut self.open
            && std::mem::take(&mut control.is_sending)
            && !timeout(LAST, control.read())
                .await
                .is_ok_and(|reply| reply.is_ok_and(|reply| reply.is_done()))
        {
            self.open = None;
        }
    }

    /// Whether the control connection is open, with no reply outstanding.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    async fn log_in(&mut self, url: &Url) -> Result<Control, Trouble> {
        let failed = |error: io::Error| trouble(&error);
        let asked = (url.host(), url.port());
        let (mut wire, ip) = self.route.connect_known(asked, &self.peers).await.map_err(failed)?;
        let host = ip.map_or_else(|| url.host().to_owned(), |ip| ip.to_string());
        let is_private = url.scheme() == Scheme::Ftps;
        // At the usual port of FTP, encryption begins after a command (RFC 4217).
        let asks_for_tls = is_private && url.port() == 21;
        if is_private && !asks_for_tls {
            wire = Box::new(self.tls.other(wire, url.host()).await.map_err(failed)?);
        }
        let (buffer, server) = (BytesMut::new(), url.clone());
        let mut control = Control {
            wire,
            buffer,
            server,
            host,
            is_private,
            lacks_extended: false,
            begins_anywhere: None,
            is_sending: false,
        };
        let greeting = control.read().await.inspect_err(|_| self.peers.forget(asked, &self.route))?;
        if !greeting.is_done() {
            return Err(busy_or(greeting.code, "the server does not let anyone in"));
        }
        if asks_for_tls {
            if !control.ask("AUTH TLS").await?.is_done() {
                return Err(Trouble::Useless("the server does not encrypt".to_owned()));
            }
            // Anyone could have sent bytes before the handshake.
            control.buffer.clear();
            control.wire = Box::new(self.tls.other(control.wire, url.host()).await.map_err(failed)?);
        }
        let (name, password) =
            url.user().unwrap_or_else(|| ("anonymous".to_owned(), "anonymous@".to_owned()));
        if [&name, &password].iter().any(|text| text.contains(['\r', '\n'])) {
            return Err(Trouble::Useless("the name or password has a line break".to_owned()));
        }
        let mut reply = control.ask(&format!("USER {name}")).await?;
        if reply.code == 331 {
            reply = control.ask(&format!("PASS {password}")).await?;
        }
        match reply.code {
            200..=299 => {}
            530 | 332 | 532 if !reply.text.to_ascii_lowercase().contains("too many") => {
                return Err(Trouble::Useless(format!("the server refuses the login ({})", reply.code)));
            }
            code => return Err(busy_or(code, "the login failed")),
        }
        if is_private {
            for command in ["PBSZ 0", "PROT P"] {
                if !control.ask(command).await?.is_done() {
                    return Err(Trouble::Useless("the server does not encrypt data".to_owned()));
                }
            }
        }
        if !control.ask("TYPE I").await?.is_done() {
            return Err(Trouble::Useless("the server sends no binary files".to_owned()));
        }
        ip.into_iter().for_each(|ip| self.peers.note(asked, &self.route, ip));
        Ok(control)
    }
}

fn path_of(url: &Url) -> Result<String, Trouble> {
    url.file_path().ok_or_else(|| Trouble::Useless("the address names no file".to_owned()))
}

/// Replies that limit connections, or a failure.
fn busy_or(code: u16, why: &str) -> Trouble {
    match code {
        421 | 450 | 530 => Trouble::Busy(None),
        code => Trouble::Failed(format!("{why} ({code})")),
    }
}

impl Control {
    async fn ask(&mut self, command: &str) -> Result<Reply, Trouble> {
        let failed = |error: io::Error| Trouble::Failed(error.to_string());
        self.wire.write_all(format!("{command}\r\n").as_bytes()).await.map_err(failed)?;
        self.wire.flush().await.map_err(failed)?;
        let reply = self.read().await?;
        if reply.code == 421 { Err(Trouble::Busy(None)) } else { Ok(reply) }
    }

    async fn read(&mut self) -> Result<Reply, Trouble> {
        loop {
            if let Some((reply, len)) = Reply::read(&self.buffer).map_err(Trouble::Failed)? {
                let _ = self.buffer.split_to(len);
                return Ok(reply);
            }
            let read = timeout(ANSWER, self.wire.read_buf(&mut self.buffer)).await;
            match read {
                Ok(Ok(1..)) => {}
                Ok(Ok(_)) => return Err(Trouble::Failed("the server closed the connection".to_owned())),
                Ok(Err(error)) => return Err(Trouble::Failed(error.to_string())),
                Err(_) => return Err(Trouble::Failed("the server does not answer".to_owned())),
            }
        }
    }

    /// Asks for the state of a file.
    async fn state(&mut self, path: &str) -> Result<FtpState, Trouble> {
        let size = self.ask(&format!("SIZE {path}")).await?.size();
        let modified = self.ask(&format!("MDTM {path}")).await?.time();
        Ok(FtpState { size, version: Validator::of_time(modified) })
    }

    /// Whether the server can begin within a file.
    async fn begins_anywhere(&mut self) -> Result<bool, Trouble> {
        if self.begins_anywhere.is_none() {
            let accepts = self.ask("REST 1").await?.code == 350 && self.ask("REST 0").await?.code == 350;
            self.begins_anywhere = Some(accepts);
        }
        Ok(self.begins_anywhere.unwrap_or_default())
    }

    /// Opens a data connection: by EPSV, or by PASV where that is refused.
    async fn open_data(&mut self, route: &Route) -> Result<Wire, Trouble> {
        let host = self.host.clone();
        if !self.lacks_extended {
            if let Some(port) = self.ask("EPSV").await?.extended_port()
                && let Ok(Ok(data)) = timeout(DATA, route.connect(&host, port)).await
            {
                return Ok(data);
            }
            self.lacks_extended = true;
        }
        let reply = self.ask("PASV").await?;
        let Some(address) = reply.passive_address() else {
            return Err(Trouble::Failed(format!("the server opens no data connection ({})", reply.code)));
        };
        let failed = |why: String| Trouble::Failed(format!("the server's data connection fails: {why}"));
        let connected = timeout(DATA, route.connect(&host, address.port())).await;
        let connected = connected.map_err(|_| failed("it does not accept one".to_owned()))?;
        connected.map_err(|error| failed(error.to_string()))
    }
}
