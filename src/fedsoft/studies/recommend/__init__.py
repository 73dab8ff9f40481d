"""One model, fine-tuned copies, clusters or personal models with a learned prior: which to ship, and how sure is it?"""
