"""Tickets of a help desk and the team that each goes to: a task of one's own, written by hand."""

import json
from pathlib import Path

TASK = """\
task: tickets
fields: [subject, body]
template: "Subject: {subject}\\n{body}"
labels: [billing, bug, account]
label: team
rationale: reason
prompt:
  instruction: Decide which team of a software company answers a customer's ticket.
  demonstrations:
    - subject: Receipt for March
      body: Our accountant needs last month's receipt as a PDF.
      rationale: A receipt is about a payment.
      label: billing
"""

_TICKETS = """\
billing|Charged twice|My card shows two payments of 19 euros for May.|The customer paid twice.
billing|Invoice address|Please put our new street on the next invoices.|
billing|Refund|I cancelled on the second day and would like my money back.|The customer asks for money back.
billing|VAT number missing|The invoice lacks our VAT number, so I can't book it.|An invoice is wrong.
billing|Price of ten seats|What would ten seats cost a year?|
billing|Card expired|My old card ran out; where do I enter the new one?|A card is how customers pay.
billing|Student discount|I study in Porto. Is there a lower price?|
billing|Wrong currency|I was billed in dollars although I chose pounds.|The bill has the wrong currency.
billing|Downgrade|Move us to the small plan from July on, please.|A plan decides the price.
billing|Payment failed|The bank says yes, your page says no.|A payment did not go through.
billing|Receipts by mail|Can the receipts go to our accountant directly?|
bug|Export is empty|The CSV has its header and no rows since Tuesday.|An export that worked is broken.
bug|Crash on start|Version 4.2 closes right after the logo on my phone.|The program crashes.
bug|Search finds nothing|Typing any word gives zero results, even titles I can see.|Search does not work.
bug|Wrong time zone|Meetings appear two hours late since the clocks changed.|
bug|Blurry photos|Pictures look sharp until I save them.|Saving spoils pictures.
bug|Button does nothing|Pressing Send has no effect in Firefox.|A button does not work.
bug|Sort order|Names with umlauts come after Z.|
bug|Endless spinner|The report page has been loading for an hour.|A page does not load.
bug|Umlaut in file name|Uploading Müller.pdf gives error 500.|The server answers with an error.
bug|Duplicate rows|Every import adds each contact twice.|
bug|Notifications late|Alarms arrive the next morning.|Alarms come too late to be of use.
account|Forgot password|The reset mail never arrives, not even in spam.|The customer can't log in.
account|New owner|Ana leaves; make Li the owner of our workspace.|Ownership is a right of an account.
account|Delete me|Please erase my profile and everything in it.|The customer wants the profile erased.
account|Two-factor lost|My phone is gone and with it the codes.|Codes are needed to log in.
account|Change e-mail|I married and have a new address.|
account|Locked out|Three wrong tries and now it says wait.|The customer can't log in.
account|Invite colleagues|How do I let Tom and Aisha in?|
account|Merge logins|I have one login from work and one from home.|Two logins belong to one person.
account|Read-only guest|Our auditor should see all and change nothing.|A guest needs rights.
account|Strange sign-in|Someone in a city I never visited used my login.|Somebody else used the login.
account|Name misspelt|It says Jon; I am John.|
"""

ROWS = [
    {"subject": subject, "body": body, "team": team, **({"reason": reason} if reason else {})}
    for team, subject, body, reason in (line.split("|") for line in _TICKETS.splitlines())
]


def write_task(folder: Path, text: str = TASK) -> Path:
    path = folder / "tickets.yaml"
    path.write_text(text)
    return path


def write_lines(path: Path, rows: list[dict[str, object]]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_tickets(folder: Path) -> Path:
    return write_lines(folder / "tickets.jsonl", [dict(row) for row in ROWS])
