//! Connects by ticket, through relays too, and sends one message over a stream.
//!
//! ```text
//! cargo run -p anabranch-node --example connect                       prints a ticket and waits
//! cargo run -p anabranch-node --example connect -- TICKET [RELAY]...  sends a message to its maker
//! ```

use anabranch_net::Ticket;
use anabranch_node::{Access, Dial, Node, RelayRoute, TicketShare};
use anabranch_wire::{Escaped, Span};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    match arguments.next() {
        Some(ticket) => {
            connect(&ticket.parse()?, arguments.map(|relay| relay.parse()).collect::<Result<_, _>>()?).await
        }
        None => serve().await,
    }
}

/// Opens a session over every path there is: all local interfaces, the ticket's relays and this node's own `relays`.
async fn connect(ticket: &Ticket, relays: Vec<RelayRoute>) -> Result<(), Box<dyn std::error::Error>> {
    let node = Node::builder().relays(relays).start().await?;
    let session = node.dial(&Dial::ticket(ticket)).await?;
    let mut stream = session.session().open_stream().await?;
    stream.write_all(b"hello over all paths").await?;
    stream.shutdown().await?;
    session.session().close().await;
    node.close().await;
    Ok(())
}

/// Prints a ticket that is good for an hour, and receives one message.
async fn serve() -> Result<(), Box<dyn std::error::Error>> {
    let share = TicketShare::new(Some(Span::from_secs(3_600)))?;
    let node = Node::builder().access(Access::by_ticket(share.clone())).start().await?;
    let invitation = node.invite(&share, &[]).await?;
    println!("{}", invitation.ticket.to_text().as_str());
    let session = node.accept().await.ok_or("the node is closed")?;
    let mut message = String::new();
    session.session().accept_stream().await?.read_to_string(&mut message).await?;
    // A terminal must not obey the other end's text.
    println!("{}", Escaped(&message));
    node.close().await;
    Ok(())
}
