"""Supplier onboarding: ask, wait for the reply, register, tell. Each effect can be looked up afterwards."""

from __future__ import annotations

import os
import smtplib
from dataclasses import dataclass
from datetime import timedelta
from email.message import EmailMessage
from typing import Any

import httpx

from actum import (
    Absent,
    Confirmed,
    Mismatch,
    NotSent,
    OutcomeUnknown,
    Refused,
    Retry,
    StepFailed,
    Unclear,
    WaitExpired,
    WorkflowContext,
    http,
    step,
    workflow,
)
from examples.supplier_onboarding.suppliers import Supplier

SECONDS = 3.0
LOOKUP = timedelta(seconds=2)
PATIENT = Retry(stop_after_attempt=6, wait_initial_seconds=0.5, wait_max_seconds=5)
Finding = Confirmed | Absent | Mismatch | Unclear


def _world(name: str) -> str:
    return os.environ[f"ONBOARDING_{name}"]


@dataclass(frozen=True)
class Sent:
    """The mail server's word that it took a mail."""

    message_id: str


@dataclass(frozen=True)
class Registered:
    """The registry's record of a supplier."""

    registration_id: int
    name: str


def deliver(message: EmailMessage) -> None:
    """Hand a mail to the server; say honestly what is known when that fails.

    Before the data was sent, and at a refusal, the server certainly did not take it. A connection lost
    after that leaves the outcome unknown.
    """
    try:
        server = smtplib.SMTP("127.0.0.1", int(_world("SMTP_PORT")), timeout=SECONDS)
    except OSError as error:
        raise NotSent(f"the mail server does not answer: {error}") from error
    try:
        server.send_message(message)
    except (smtplib.SMTPRecipientsRefused, smtplib.SMTPSenderRefused) as error:
        raise Refused(str(error)) from error
    except (smtplib.SMTPServerDisconnected, OSError) as error:
        raise OutcomeUnknown(f"the connection was lost: {error}") from error
    finally:
        server.close()


def mail(supplier: Supplier, kind: str, text: str, thread_id: str, effect_key: str) -> Sent:
    """Compose and send one mail; its id follows from the effect key, the same on every attempt."""
    message = EmailMessage()
    message["From"], message["To"] = "onboarding@example.com", supplier.email
    message["Subject"] = f"{kind}: {' '.join(supplier.name.split())}"
    message["Message-ID"] = f"<{effect_key}@example.com>"
    message["X-Actum-Effect-Key"], message["X-Actum-Kind"] = effect_key, kind
    message["X-Actum-Thread"] = thread_id
    message.set_content(text)
    deliver(message)
    return Sent(str(message["Message-ID"]))


def look_up_mail(effect_key: str, recipient: str) -> Finding:
    """Ask the mail server's log whether it took the mail with this key."""
    answer = http.request(
        "GET",
        f"{_world('MAIL_URL')}/mails",
        params={"effect_key": effect_key},
        timeout=SECONDS,
    )
    mails = answer.json()
    if not mails:
        return Absent(answer.evidence)
    if mails[0]["recipient"] != recipient:
        return Mismatch({"recipient": [recipient, mails[0]["recipient"]]}, answer.evidence)
    return Confirmed(Sent(mails[0]["message_id"]), answer.evidence)


@step(effect="reconcilable", owner="onboarding", timeout=timedelta(seconds=5), retry=PATIENT)
def send_verification(supplier: Supplier, thread_id: str, *, effect_key: str) -> Sent:
    """Ask the supplier to confirm the terms."""
    text = f"Please confirm your terms.\n\nTerms: {supplier.terms}\n"
    return mail(supplier, "verification", text, thread_id, effect_key)


@send_verification.reconciler(settle=LOOKUP)
def find_verification(supplier: Supplier, thread_id: str, *, effect_key: str) -> Finding:
    """Was the verification mail taken?"""
    return look_up_mail(effect_key, supplier.email)


@step(effect="reconcilable", owner="procurement", timeout=timedelta(seconds=4), retry=PATIENT)
def register_supplier(supplier: Supplier, terms: str, *, effect_key: str) -> Registered:
    """Enter the supplier into the registry."""
    record = {"supplier_id": supplier.supplier_id, "name": supplier.name, "terms": terms}
    answer = http.request(
        "POST",
        f"{_world('REGISTRY_URL')}/suppliers",
        json=record,
        effect_key=effect_key,
        timeout=SECONDS,
    )
    return _registered(answer.json())


def _registered(record: dict[str, Any]) -> Registered:
    return Registered(record["registration_id"], record["supplier"]["name"])


@register_supplier.reconciler(settle=LOOKUP)
def find_registration(supplier: Supplier, terms: str, *, effect_key: str) -> Finding:
    """Is the supplier registered under this key, and as we meant it?"""
    url = f"{_world('REGISTRY_URL')}/suppliers/by-key/{effect_key}"
    answer = httpx.get(url, timeout=SECONDS)
    if answer.status_code == 404:
        return Absent({"url": url})
    found = answer.json()
    name = found["supplier"]["name"]
    if name != supplier.name:
        return Mismatch({"name": [supplier.name, name]}, {"url": url})
    return Confirmed(_registered(found), {"url": url})


@register_supplier.check
def is_numbered(result: Registered) -> bool:
    """A registration without a number is not complete."""
    return result.registration_id > 0


@step(effect="reconcilable", owner="onboarding", timeout=timedelta(seconds=5), retry=PATIENT)
def tell_supplier(supplier: Supplier, thread_id: str, text: str, *, effect_key: str) -> Sent:
    """Tell the supplier how it went."""
    return mail(supplier, "outcome", text, thread_id, effect_key)


@tell_supplier.reconciler(settle=LOOKUP)
def find_outcome_mail(supplier: Supplier, thread_id: str, text: str, *, effect_key: str) -> Finding:
    """Was the outcome mail taken?"""
    return look_up_mail(effect_key, supplier.email)


@workflow(version="1", owner="onboarding", deadline=timedelta(days=14), on_upgrade="finish")
def onboard_supplier(wf: WorkflowContext, supplier: Supplier) -> dict[str, Any]:
    """Onboard one supplier."""
    me = str(wf.thread_id)
    wf.run(send_verification, supplier, me)
    try:
        reply = wf.wait("supplier.replied", within=timedelta(days=5))
    except WaitExpired:
        return {"outcome": "no reply"}
    try:
        registered = wf.run(register_supplier, supplier, reply["terms"])
    except StepFailed as refusal:
        wf.run(tell_supplier, supplier, me, "We could not register you.")
        return {"outcome": "refused by the registry", "why": refusal.error.get("message", "")}
    wf.run(tell_supplier, supplier, me, f"You are registered as {registered.registration_id}.")
    return {"outcome": "registered", "number": registered.registration_id}
