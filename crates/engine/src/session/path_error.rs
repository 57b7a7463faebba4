//! Why a path is refused.

/// Why a path was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// The session is not established, or over.
    #[error("the session is not established")]
    NotEstablished,
    /// As many paths are open as both ends allow.
    #[error("no more than {0} paths are allowed at the same time")]
    TooMany(u32),
    /// The peer has not provided a PID for the next path yet; try again a round trip later.
    #[error("the peer has not made the next path ready yet")]
    NotReady,
    /// A path over this route exists.
    #[error("there is a path over this route already")]
    Exists,
    /// There is no such path.
    #[error("there is no such path")]
    Unknown,
    /// A rule forbids the path, or the bytes of its cap are used up.
    #[error("a rule forbids a path over this route, or its cap is used up")]
    RuledOut,
    /// The rules would leave the session without a path.
    #[error("that would leave the session without a path")]
    NoneLeft,
}
