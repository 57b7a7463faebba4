//! Downloads from any server over several interfaces and exits.
//!
//! ```text
//! mirrors × routes = sources ─ lanes: HTTP, FTP ─▶ download ─▶ store: unfinished file, journal ─ sync, rename ─▶ file
//!                                     ▲   planner decides who fetches which bytes
//! ```
//!
//! | module | job | I/O |
//! |---|---|---|
//! | `plan` | which source fetches which bytes next | none |
//! | `ranges`, `limit`, `url`, `checksum`, `metalink` | sets of ranges, rate limits, addresses, hashes, lists | none |
//! | `http::head`, `http::validator` | what a response means | none |
//! | `peers` | which address of a server is used | none |
//! | `dns` | addresses by the name servers of an interface | sockets |
//! | `route`, `tls` | connections over an interface or through an exit | sockets |
//! | `http`, `ftp`, `connection` | requests | sockets |
//! | `source` | asks a mirror over a route, and checks what it answers | sockets |
//! | `store` | the file and its journal | disk |
//! | `download` | the whole | all |

mod checksum;
mod connection;
mod dns;
mod download;
mod error;
mod ftp;
mod hosts;
mod http;
mod limit;
mod metalink;
mod peers;
mod plan;
mod progress;
mod ranges;
mod route;
mod source;
mod store;
mod tls;
mod url;

pub use checksum::Checksum;
pub use download::{Cap, Job, Options, Report, RouteUse, fetch};
pub use error::{FetchError, Tried};
pub use metalink::{MetalinkFile, read_metalink};
pub use progress::{Progress, Snapshot, SourceStatus};
pub use route::{Outlet, Route};
pub use store::kept;
pub use tls::Tls;
pub use url::{Scheme, Url, safe_name};
