"""A certificate: play a policy until it is proven that it keeps a limit, whatever the distribution of its costs.

python examples/certificate.py
tailsafe certify pretrained:two-roads --limit 3/discounted
"""

import tailsafe as ts
from tailsafe.evaluation.certificate import check


def main():
    proof = ts.certify("pretrained:two-roads", 3.0, "discounted", confidence=0.99)
    found = proof.shown
    print(f"certified: {proof.certified}; risk {found.risks[0]:.2f}, at most {found.uppers[0]:.2f}")

    # Anybody can play the same episodes again.
    again = check("runs/pretrained-two-roads/certificate.json")
    print(f"confirmed: {again.confirmed}; every number as written: {again.identical}")


if __name__ == "__main__":
    main()
